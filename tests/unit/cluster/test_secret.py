"""Where the secret comes from, and what proves that somebody knows it."""

import pytest

from tf_adasum.cluster import secret
from tf_adasum.environment_variables import SECRET, SECRET_FILE


def test_a_proof_is_of_one_secret_and_one_message():
    known = secret.Secret(b"Jefe")
    message = ["greeting", 0, 1, "a", "b"]
    # HMAC-SHA-256 by OpenSSL.
    proof = "9453d048fa1850ba5c8653cfb3dd2221ce83a6640de88d5ae284484fadc23225"
    assert known.proof(*message) == proof and known.proves(proof, *message)
    for wrong in (known.proof("greeting", 1, 0, "a", "b"), "", None, 3, "ü", ["a"]):
        assert not known.proves(wrong, *message)
    assert not secret.Secret(b"Jeff").proves(known.proof(*message), *message)
    assert not secret.Secret().proves(known.proof(*message), *message)


def test_the_secret_is_not_shown():
    assert "Jefe" not in repr(secret.Secret(b"Jefe"))


def test_from_a_variable_or_a_file(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(b"  s3cret\r\n")
    of_file = secret.read({SECRET_FILE: str(path)})
    of_variable = secret.read({SECRET: "s3cret"})
    assert of_file.key == of_variable.key == b"s3cret"
    assert secret.read({"PATH": "/bin"}) == secret.Secret() and not secret.Secret().key


def test_what_cannot_be_used_is_named(tmp_path):
    (tmp_path / "empty").write_bytes(b" \n")

    def file(name):
        return {SECRET_FILE: str(tmp_path / name)}

    for environment, message in [
        ({SECRET: ""}, f"{SECRET} gives an empty secret"),
        ({SECRET: " \n"}, f"{SECRET} gives an empty secret"),
        (file("empty"), f"{SECRET_FILE}={tmp_path}/empty gives an empty secret"),
        (file("none"), f"{SECRET_FILE}={tmp_path}/none cannot be read: .*No such file"),
        (file("."), f"{SECRET_FILE}={tmp_path} cannot be read: .*Is a directory"),
        ({SECRET_FILE: ""}, f"{SECRET_FILE}= cannot be read"),
        ({SECRET: "a", **file("empty")}, f"{SECRET} or {SECRET_FILE}, not both"),
    ]:
        with pytest.raises(ValueError, match=message):
            secret.read(environment)
