"""The secret of a cluster, with which tasks prove to each other that they belong to the cluster.

A proof is an HMAC-SHA256 (RFC 2104), so the secret itself is never sent. Standard library only.
"""

import dataclasses
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_adasum.environment_variables import SECRET, SECRET_FILE


@dataclasses.dataclass(frozen=True)
class Secret:
    """The secret of a cluster.

    Attributes:
        key: the secret itself; empty if the cluster has no secret. Anyone can make a proof with an
            empty key. So a proof with an empty key only shows that its sender saw the random
            numbers of this connection.
    """

    key: bytes = dataclasses.field(default=b"", repr=False)

    def proof(self, *of: Any) -> str:
        """Return a proof that the sender knows this secret and sends the data `of` (JSON types)."""
        return hmac.digest(self.key, json.dumps(of).encode(), hashlib.sha256).hex()

    def proves(self, proof: Any, *of: Any) -> bool:
        """Return whether a proof shows that its sender knows the secret and sent the data `of`."""
        is_text = isinstance(proof, str) and proof.isascii()
        return is_text and hmac.compare_digest(proof, self.proof(*of))


def read(environment: Mapping[str, str] = os.environ) -> Secret:
    """Return the secret that the environment sets; if none is set, a secret with an empty key.

    White space around the secret is removed, such as the line break at the end of a file.

    Raises:
        ValueError: if the secret is empty, its file cannot be read, or both variables are set.
    """
    secret, path = environment.get(SECRET), environment.get(SECRET_FILE)
    if secret is not None and path is not None:
        raise ValueError(f"Set {SECRET} or {SECRET_FILE}, not both.")
    if secret is not None:
        key, source = os.fsencode(secret), SECRET
    elif path is not None:
        source = f"{SECRET_FILE}={path}"
        try:
            key = Path(path).read_bytes()
        except (OSError, ValueError) as error:  # ValueError: a name with a NUL
            raise ValueError(f"The file of {source} cannot be read: {error}") from error
    else:
        return Secret()
    if not key.strip():
        raise ValueError(
            f"{source} gives an empty secret. Unset the variable, or give all tasks the same long "
            "random secret, such as the output of `openssl rand -hex 32`."
        )
    return Secret(key.strip())
