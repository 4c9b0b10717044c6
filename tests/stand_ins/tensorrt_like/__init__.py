"""As torch_tensorrt: importing the package registers two names, defined three packages deeper."""

from tensorrt_like.dynamo import backend
