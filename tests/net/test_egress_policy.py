"""Tests of the addresses that may be connected to, for all settings and spellings."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from select_service.net.egress_policy import EgressPolicy, parse_network

V4 = st.integers(0, 2**32 - 1).map(IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(IPv6Address)
NEAR = st.sampled_from(
    ["169.254.0.0/16", "127.0.0.0/8", "224.0.0.0/4", "10.0.0.0/8", "0.0.0.0/8", "192.168.0.0/16"]
).flatmap(lambda text: st.integers(0, 2**16).map(lambda n: ip_network(text)[n % 2**16]))
NETWORKS = st.lists(
    st.sampled_from(["10.0.0.0/8", "192.168.7.0/24", "0.0.0.0/0", "fd00:1::/64", "::/0"]).map(
        ip_network
    ),
    max_size=3,
).map(tuple)
HOSTS = st.lists(st.sampled_from([".svc.cluster.local", "engine"]), max_size=2).map(tuple)
SETTINGS = st.builds(EgressPolicy, NETWORKS, HOSTS, st.booleans())
NAMES = st.sampled_from(["engine", "a.svc.cluster.local", "evil.example", "engine.evil.example"])

EVERYWHERE = EgressPolicy()
NEVER = [
    "0.0.0.0",
    "0.1.2.3",
    "169.254.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "224.0.0.1",
    "239.255.255.255",
    "255.255.255.255",
    "::",
    "::10.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "febf::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:c1::a9fe:a9fe",
    "ff02::1",
    "2001::1",
    "2002:a9fe:a9fe::1",
    "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::169.254.169.254",
    "64:ff9b:1:a9fe:a9:fe00::",  # a prefix of 48 bits
    "64:ff9b:1:a9fe:a9:fe00:808:808",  # with more bits behind the address
    "64:ff9b:1:a9fe:ffa9:fe00:808:808",  # and in the gap
    "64:ff9b:1:a9:fe:a9fe::",  # a prefix of 56 bits
    "64:ff9b:1:7a9:fe:a9fe:808:808",
    "64:ff9b:1:0:a9:fea9:fe00:0",  # a prefix of 64 bits
    "64:ff9b:1:7:a9:fea9:fe08:808",
    "64:ff9b:1:7f00:0:100:a9fe:a9fe",  # or the machine itself
    "::ffff:0.0.0.0",
]
ORDINARY = [
    "10.0.0.1",
    "192.168.1.1",
    "172.16.0.1",
    "8.8.8.8",
    "240.0.0.1",  # some clouds give these to pods
    "fd00:1::1",
    "2a00::1",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::10.1.2.3",
    "64:ff9b:1:7f::10.1.2.3",
    "64:ff9b:1:7f:a:102:300:0",  # a prefix of 64 bits
    "64:ff9b:1:fe0a:1:203::",  # a prefix of 56 bits
    "64:ff9b:1:a01:2:300::",  # a prefix of 48 bits
    "::ffff:10.0.0.1",
]
HERE = [
    "127.0.0.1",
    "127.255.0.9",
    "::1",
    "::ffff:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b:1:7f00:0:100:808:808",
    "64:ff9b:1:7f:0:1:808:808",
    "64:ff9b:1:0:7f:0:108:808",
]


@given(SETTINGS, NAMES)
def test_these_are_refused_whatever_is_set(settings_, host):
    for address in NEVER:
        assert settings_.address_refusal(host, address), address
        assert address in settings_.address_refusal(address, address)


@pytest.mark.parametrize("address", ORDINARY)
def test_all_others_are_allowed_where_nothing_is_listed(address):
    assert EVERYWHERE.address_refusal("name", address) is None
    assert EVERYWHERE.host_refusal(address) is None


@pytest.mark.parametrize("address", HERE)
def test_the_machine_itself_has_a_flag_of_its_own(address):
    listed = (ip_network("0.0.0.0/0"), ip_network("::/0"))
    for networks in ((), listed):
        assert EgressPolicy(networks, (), loopback=True).address_refusal(address, address) is None
        refusal = EgressPolicy(networks, ("name",), loopback=False).address_refusal("name", address)
        assert "--connect-to-loopback" in refusal


def forms_of(address):
    """Return spellings of an IPv4 address in IPv6 by which a socket reaches the same host."""
    number = int(address)
    prefixes = ("::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::")
    return [str(IPv6Address(int(IPv6Address(prefix)) + number)) for prefix in prefixes]


@given(SETTINGS, NAMES, st.one_of(V4, NEAR, V6))
@example(EgressPolicy((ip_network("::/0"),), (), False), "a", IPv6Address("::ffff:7f00:1"))
def test_allowed_addresses_are_those_of_the_settings(settings_, host, address):
    refusal = settings_.address_refusal(host, str(address))
    if address.version == 6 and (int(address) >> 96 == 0 or address.ipv4_mapped):
        return  # other forms of IPv4, which have a separate test
    if address.is_link_local or address.is_multicast or address.is_unspecified:
        assert refusal
    elif address.is_loopback:
        assert (refusal is None) == settings_.loopback
    elif refusal is None:
        is_listed = any(address in each for each in settings_.networks)
        is_named = any(host == each or host.endswith(each) for each in settings_.hosts)
        assert is_listed or is_named or settings_ == EgressPolicy(loopback=settings_.loopback)
    else:
        ordinary = EVERYWHERE.address_refusal(host, str(address)) is None
        assert not ordinary or "--connect-to: " in refusal


@given(SETTINGS, NAMES, st.one_of(V4, NEAR))
@example(EgressPolicy((ip_network("::/0"),)), "a", IPv4Address("10.0.0.1"))
def test_an_address_of_ipv4_may_not_hide_in_one_of_ipv6(settings_, host, address):
    plain = settings_.address_refusal(host, str(address))
    mapped, *others = (settings_.address_refusal(host, form) for form in forms_of(address)[:2])
    assert (mapped is None) == (plain is None)
    assert (others[0] is None) == (plain is None)
    if EVERYWHERE.address_refusal(host, str(address)) is not None:
        assert all(settings_.address_refusal(host, form) for form in forms_of(address))
    elif plain is None and int(address) & 0xFFFFFF != 0:
        assert all(settings_.address_refusal(host, form) is None for form in forms_of(address))


def behind(prefix_bits, address, rest):
    """Return an address of 64:ff9b:1::/48 with an IPv4 address inside, placed by RFC 6052, 2.2."""
    octets = list(rest)
    octets[:6] = 0x00, 0x64, 0xFF, 0x9B, 0x00, 0x01
    places = {48: (6, 7, 9, 10), 56: (7, 9, 10, 11), 64: (9, 10, 11, 12), 96: (12, 13, 14, 15)}
    for place, octet in zip(places[prefix_bits], address.packed, strict=True):
        octets[place] = octet
    return str(IPv6Address(bytes(octets)))


@given(
    SETTINGS,
    NAMES,
    st.sampled_from((48, 56, 64, 96)),
    st.one_of(V4, NEAR).filter(lambda each: int(each) & 0xFFFFFF),
    st.binary(min_size=16, max_size=16),
)
def test_translators_with_shorter_prefixes_are_no_way_around(settings_, host, bits, address, rest):
    plain = settings_.address_refusal(host, str(address))
    translated = settings_.address_refusal(host, behind(bits, address, rest))
    if address.packed[0] and plain is not None:
        is_listed = "is not permitted by" in plain and ip_network("::/0") in settings_.networks
        assert is_listed or translated is not None


def test_names_and_networks_are_ways_to_be_listed():
    listed = EgressPolicy((ip_network("10.0.0.0/8"),), (".engines.local", "vllm"), False)
    assert listed.address_refusal("evil", "10.1.1.1") is None
    assert listed.address_refusal("a.engines.local", "192.168.1.1") is None
    assert listed.address_refusal("A.Engines.Local.", "192.168.1.1") is None
    assert listed.address_refusal("VLLM", "192.168.1.1") is None
    assert listed.address_refusal("evil", "192.168.1.1") == (
        "evil resolves to 192.168.1.1, which is not permitted by --connect-to: "
        "10.0.0.0/8, .engines.local, vllm"
    )
    for name in ("engines.local", "aengines.local", "vllm.evil", "a.engines.local.evil"):
        assert listed.address_refusal(name, "192.168.1.1")
    assert listed.address_refusal("a.engines.local", "127.0.0.1")
    assert listed.address_refusal("a.engines.local", "169.254.169.254")


def test_a_long_list_is_not_repeated_as_a_whole():
    listed = EgressPolicy(tuple(ip_network(f"10.{n}.0.0/16") for n in range(20)))
    assert listed.address_refusal("a", "11.0.0.1").endswith("10.7.0.0/16 and 12 more")


@pytest.mark.parametrize("text", ["", "name", "127.1", "2130706433", "0x7f.1", "1.2.3.4.5", "::g"])
def test_invalid_addresses_are_refused(text):
    assert EVERYWHERE.address_refusal("name", text)


def test_names_are_judged_before_the_lookup_where_possible():
    here, elsewhere = EgressPolicy(), EgressPolicy(loopback=False)
    for name in ("localhost", "LOCALHOST.", "a.localhost"):
        assert here.host_refusal(name) is None
        assert elsewhere.host_refusal(name)
    only_names = EgressPolicy(hosts=(".local",))
    assert only_names.host_refusal("a.local") is None
    assert only_names.host_refusal("evil.example")
    assert EgressPolicy((ip_network("10.0.0.0/8"),), (".local",)).host_refusal("a.b") is None


def test_of_urls_and_endpoints_the_host_counts():
    elsewhere = EgressPolicy(loopback=False)
    for url in ("http://127.0.0.1/m", "https://[::1]:9/", "http://localhost:8000/metrics"):
        assert elsewhere.url_refusal(url)
    assert elsewhere.url_refusal("http://engine:8000/metrics?name=127.0.0.1") is None
    for endpoint in ("tcp://127.0.0.1:1", "tcp://[::1]:1", "ipc:///tmp/a", "inproc://a"):
        assert elsewhere.endpoint_refusal(endpoint)
        assert EVERYWHERE.endpoint_refusal(endpoint) is None
    for endpoint in ("tcp://engine:1", "tcp://10.0.0.1:1", "tcp://*:1"):
        assert elsewhere.endpoint_refusal(endpoint) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("169.254.0.0/16", "always refused"),
        ("169.254.169.254", "always refused"),
        ("fe80::/64", "always refused"),
        ("224.0.0.0/8", "always refused"),
        ("fd00:ec2::254", "always refused"),
        ("127.0.0.1", "--connect-to-loopback"),
        ("127.0.0.0/8", "--connect-to-loopback"),
        ("::1", "--connect-to-loopback"),
        ("::ffff:10.0.0.0/104", "IPv4"),
        ("10.0.0.1/8", "host bits"),
        ("10.0.0", "appear to be"),
    ],
)
def test_networks_that_cannot_be_meant(text, why):
    with pytest.raises(ValueError, match=why):
        parse_network(text)


def test_networks_that_may_be_listed():
    for text in ("0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.1", "fd00::/8", "64:ff9b::/96"):
        assert parse_network(text) == ip_network(text)
    through = EgressPolicy((parse_network("64:ff9b::/96"),))
    assert through.address_refusal("a", str(ip_address("64:ff9b::808:808"))) is None
    assert through.address_refusal("a", "8.8.8.8")
