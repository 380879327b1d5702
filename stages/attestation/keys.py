"""Can this key sign, or verify? Elliptic curve keys in PEM, as model-signing takes them.

It would raise what its parsers do; here a key that is none is one sentence.
"""

import os
from pathlib import Path
from typing import Any

from ..config.errors import UserError

PASSWORD = "HOLDSHORT_KEY_PASSWORD"
"""The environment variable with the password of an encrypted private key."""
CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""NIST P-256, P-384 and P-521: all that model-signing knows."""
NEW_KEY = "`openssl ecparam -name prime256v1 -genkey -noout -out signing.key` makes one"
PUBLIC_KEY = "`openssl ec -in KEY -pubout -out signing.pub` writes the public one"


def read_key(path: Path, remedy: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"the key {path} does not exist; {remedy}") from None


def password_for(path: Path) -> bytes | None:
    """The password that the private key needs, or None.

    Raises UserError for what is no private key on a curve that signs, or cannot be decrypted.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content, password = read_key(path, NEW_KEY), None
    try:
        try:
            key = load_pem_private_key(content, None)
        except TypeError:  # it is encrypted
            password = os.environ.get(PASSWORD, "").encode()
            if not password:
                raise UserError(
                    f"the key {path} is encrypted; set {PASSWORD} to its password"
                ) from None
            key = load_pem_private_key(content, password)
    except (ValueError, UnsupportedAlgorithm):
        if password:
            raise UserError(f"the password in {PASSWORD} does not open the key {path}") from None
        if b"PUBLIC KEY" in content:
            raise UserError(f"{path} holds a public key; give the private one to sign") from None
        raise UserError(f"{path} holds no private key in PEM; {NEW_KEY}") from None
    refuse_other_curves(path, key)
    return password


def refuse_no_public_key(path: Path) -> None:
    """Raises UserError for what is no public key on a curve that signs."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = read_key(path, f"take the signer's public key; {PUBLIC_KEY}")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        if b"PRIVATE KEY" in content:
            raise UserError(f"{path} holds a private key; {PUBLIC_KEY}, which verifies") from None
        raise UserError(f"{path} holds no public key in PEM; {PUBLIC_KEY}") from None
    refuse_other_curves(path, key)


def refuse_other_curves(path: Path, key: Any) -> None:
    curve = getattr(getattr(key, "curve", None), "name", None)
    if curve not in CURVES:
        found = f"on the curve {curve}" if curve else "of another kind than elliptic curve"
        raise UserError(f"{path} holds a key {found}; {', '.join(CURVES)} can sign: {NEW_KEY}")
