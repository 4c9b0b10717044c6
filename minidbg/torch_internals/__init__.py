"""The only importer of torch's private names, a file per subject. ``private`` marks their users."""

from minidbg.torch_internals.aot import *  # noqa: F403
from minidbg.torch_internals.backends import *  # noqa: F403
from minidbg.torch_internals.devices import restoring_random_numbers as restoring_random_numbers
from minidbg.torch_internals.direct import *  # noqa: F403
from minidbg.torch_internals.dynamo import *  # noqa: F403
from minidbg.torch_internals.lazy_backward import *  # noqa: F403
from minidbg.torch_internals.operators import *  # noqa: F403
from minidbg.torch_internals.private_names import *  # noqa: F403
from minidbg.torch_internals.process import *  # noqa: F403
from minidbg.torch_internals.tensors import *  # noqa: F403
from minidbg.torch_internals.thread_state import preserving_thread_state as preserving_thread_state
