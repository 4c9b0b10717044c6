"""The only importer of torch's private names, a file for each subject. ``seen`` says in which versions those of a function were there."""

from minidbg._torch.aot import *  # noqa: F403
from minidbg._torch.backends import *  # noqa: F403
from minidbg._torch.dynamo import *  # noqa: F403
from minidbg._torch.lazy_backward import *  # noqa: F403
from minidbg._torch.operators import *  # noqa: F403
from minidbg._torch.private_names import *  # noqa: F403
from minidbg._torch.process import *  # noqa: F403
from minidbg._torch.random_numbers import *  # noqa: F403
from minidbg._torch.tensors import *  # noqa: F403
