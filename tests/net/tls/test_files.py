"""Tests of TLS files: the read certificates, and the errors about wrong files."""

import re
import shutil
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from select_service.files.atomic_file import is_world_accessible
from select_service.net.tls.certificates import earliest_expiry
from select_service.net.tls.ssl_contexts import client_context, server_context
from select_service.net.tls.tls_paths import CertificatePair, ClientTlsPaths, ServerTlsPaths
from tests.builders.certificates import ask, authority

A_FOLDER = "not a regular file but a directory, give a regular file"


def shown_end(path):
    """Return the end of a certificate as openssl reports the time."""
    command = ["openssl", "x509", "-in", path, "-noout", "-enddate"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    return ssl.cert_time_to_seconds(text.removeprefix("notAfter="))


@pytest.mark.parametrize("days", [1, 20, 20_000])
def test_the_end_of_a_certificate_agrees_with_openssl(days):
    """The last certificate ends after 2050, where times have four digits of the year."""
    issued = authority().issue(days)
    assert earliest_expiry(issued.certificate.read_bytes()) == shown_end(issued.certificate)
    expected = datetime.now(UTC) + timedelta(days)
    assert abs(earliest_expiry(issued.certificate.read_bytes()) - expected.timestamp()) < 600


def test_of_a_chain_the_first_end_counts():
    long, short = authority().issue(9), authority().issue(3)
    both = long.certificate.read_bytes() + b"words between\n" + short.certificate.read_bytes()
    assert earliest_expiry(both) == shown_end(short.certificate)


def test_an_rsa_certificate_with_all_kinds_of_names_is_read(tmp_path):
    made = tmp_path / "rsa.pem"
    subject = "/C=DE/O=Some very long name of an organisation that takes bytes/CN=x"
    options = ("-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "k")
    ask("req", "-x509", "-days", "7", "-subj", subject, *options, "-out", made)
    assert earliest_expiry(made.read_bytes()) == shown_end(made)


def test_a_truncated_certificate_is_reported_as_unreadable():
    der = ssl.PEM_cert_to_DER_cert(authority().issue().certificate.read_text())
    for size in range(1, len(der)):
        with pytest.raises(ValueError, match="a certificate in the file is unreadable"):
            earliest_expiry(ssl.DER_cert_to_PEM_cert(der[:size]).encode())


def server_files(issued, **more):
    return ServerTlsPaths(CertificatePair(issued.certificate, issued.key), **more)


def test_good_files_make_a_context_of_tls_1_2_at_least():
    issued = authority().issue()
    loaded = server_context(server_files(issued))
    assert loaded.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert loaded.context.verify_mode == ssl.CERT_NONE
    assert loaded.ends_at == shown_end(issued.certificate)
    strict = server_context(server_files(issued, client_ca=authority().file))
    assert strict.context.verify_mode == ssl.CERT_REQUIRED


def faults(tmp_path):
    """Return certificate, key and error text by name of the fault."""
    one, other = authority().issue(), authority().issue()
    locked, words, rsa = tmp_path / "locked.key", tmp_path / "words", tmp_path / "rsa.key"
    ask("ec", "-in", one.key, "-aes128", "-passout", "pass:secret", "-out", locked)
    ask("genrsa", "-out", rsa, "2048")
    words.write_text("only words")
    missing, large = tmp_path / "missing", tmp_path / "large"
    large.write_bytes(b"x" * ((1 << 20) + 1))
    cert = one.certificate
    misfit = f"does not match the certificate `{cert}`"
    return {
        "missing": (missing, one.key, f"`{missing}` cannot be read: No such file or directory"),
        "no key": (cert, missing, f"`{missing}` cannot be read: No such file or directory"),
        "a folder": (
            tmp_path,
            one.key,
            f"`{tmp_path}` cannot be read: not a regular file but a directory, give a regular file",
        ),
        "large": (large, one.key, f"`{large}`: larger than 1048576 bytes"),
        "words": (words, one.key, f"`{words}`: no PEM certificate in the file"),
        "a key of words": (cert, words, f"`{cert}` with the key `{words}`: no private key in PEM"),
        "another": (cert, other.key, f"key `{other.key}` {misfit}"),
        "another kind": (cert, rsa, f"key `{rsa}` {misfit}"),
        "locked": (cert, locked, f"`{locked}` is encrypted; give a key without a passphrase"),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("missing", "no key", "a folder", "large", "words"),
        *("a key of words", "another", "another kind", "locked"),
    ],
)
def test_faults_are_reported_in_one_line(tmp_path, name):
    certificate, key, text = faults(tmp_path)[name]
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        server_context(ServerTlsPaths(CertificatePair(certificate, key)))


def test_a_ca_that_is_none_is_refused(tmp_path):
    words = tmp_path / "words.pem"
    words.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for make in (
        lambda: server_context(server_files(authority().issue(), client_ca=words)),
        lambda: client_context(ClientTlsPaths(ca=words)),
    ):
        with pytest.raises(ValueError, match="a certificate in the file is unreadable"):
            make()


def test_a_client_trusts_its_ca_and_those_of_the_system(tmp_path):
    usual = ssl.create_default_context().cert_store_stats()["x509"]
    loaded = client_context(ClientTlsPaths(ca=authority().file))
    assert loaded.context.cert_store_stats()["x509"] == usual + 1
    assert loaded.ends_at is None
    assert loaded.context.check_hostname
    own = authority().issue()
    both = client_context(ClientTlsPaths(authority().file, CertificatePair(*own)))
    assert both.ends_at == shown_end(own.certificate)


def test_a_key_that_others_can_read_is_seen(tmp_path):
    key = tmp_path / "key"
    shutil.copy(authority().issue().key, key)
    for mode, is_open in ((0o600, False), (0o640, False), (0o644, True), (0o604, True)):
        key.chmod(mode)
        assert is_world_accessible(key) is is_open
