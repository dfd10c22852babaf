"""Settings of health checks, see docs/guides/health.md.

The defaults equal those of `core.health.health_rules`, which is not imported while health is off.
"""

from select_service.config import value_parsers as read
from select_service.config.setting import ServiceSetting, flag_setting, path_setting

LOOPBACK = ("127.0.0.0/8", "::1/128")

HEALTH: tuple[ServiceSetting, ...] = (
    flag_setting(
        "--health-checks",
        "off",
        read.one_of_words("off", "on"),
        "health checks; on: ranks are checked periodically with short prompts, and unhealthy "
        "ranks get no requests",
    ),
    flag_setting(
        "--health-profile",
        "default",
        read.one_of_words("default", "document"),
        "defaults of the other health settings; document: plain rules without backoff, ejection "
        "limit and slow start",
    ),
    flag_setting(
        "--health-interval-secs",
        30.0,
        read.finite_number(0.1, 3600),
        "interval between two checks of a rank",
    ),
    flag_setting(
        "--health-timeout-secs", 5.0, read.finite_number(0.05, 600), "time limit of a check"
    ),
    flag_setting(
        "--health-retries", 2, read.whole_number(0, 10), "further attempts of a failed check"
    ),
    flag_setting(
        "--health-confirm-secs",
        2.0,
        read.finite_number(0, 3600),
        "delay between a failed check and its confirmation",
    ),
    flag_setting(
        "--health-failures",
        3,
        read.whole_number(1, 1000),
        "consecutive failed checks after which a rank is ejected",
    ),
    flag_setting(
        "--breaker-recovery-secs",
        60.0,
        read.finite_number(0.1, 86_400),
        "delay before an ejected rank is probed again",
    ),
    flag_setting(
        "--breaker-backoff",
        2.0,
        read.finite_number(1, 100),
        "factor applied to --breaker-recovery-secs after each failed probe (max 600 s)",
        kind="FACTOR",
    ),
    flag_setting(
        "--breaker-connect-secs",
        3.0,
        read.finite_number(0, 3600),
        "delay between two connections to a rank that refused them, with a probe after the first "
        "accepted one; 0 = off",
    ),
    flag_setting(
        "--health-max-eject",
        0.5,
        read.finite_number(0, 1),
        "maximum fraction of a partition's ranks that slowness and similar faults may eject, at "
        "least one rank; 1 = no limit",
        kind="FRACTION",
    ),
    flag_setting(
        "--health-slow-start-secs",
        30.0,
        read.finite_number(0, 3600),
        "duration from a recovery to the full share of requests",
    ),
    flag_setting(
        "--drain-timeout-secs",
        300.0,
        read.finite_number(0, 86_400),
        "time limit of a drain; remaining reservations are then released",
    ),
    flag_setting(
        "--dead-after-secs",
        600.0,
        read.finite_number(0, 604_800),
        "time without recovery after which a rank is dead",
    ),
    path_setting("--canary-config", "YAML file of prompts by model (default: random tokens)"),
    path_setting(
        "--health-state", "file that keeps the right answers over restarts (default: not persisted)"
    ),
    flag_setting(
        "--health-reporters",
        LOOPBACK,
        read.cidr_networks,
        "comma-separated networks whose failure reports count without a reservation; nobody = no "
        "network",
        kind="NETWORK[,NETWORK]",
    ),
    flag_setting(
        "--degradation",
        "off",
        read.one_of_words("off", "observe", "auto"),
        "reaction when the healthy ranks cannot meet the SLOs; observe: levels are shown; auto: "
        "load is shed as well",
    ),
    flag_setting(
        "--degradation-ratios",
        ("1", "0.75", "0.5", "0.25"),
        read.falling_ratios,
        "four smallest capacity ratios, of the levels 0 to 3",
        kind="RATIO[,RATIO]",
    ),
    flag_setting(
        "--migration-max-ms",
        500.0,
        read.finite_number(0, 600_000),
        "longest transfer of a reservation's cache; 0 = always compute again",
        kind="MS",
    ),
    flag_setting(
        "--migration-links",
        (),
        read.link_speeds,
        "bytes/s of a shard and latency in ms of links, as NAME=BYTES:MS, in place of the defaults",
        kind="LINK[,LINK]",
    ),
    flag_setting(
        "--spares-fraction",
        0.05,
        read.finite_number(0, 1),
        "recommended fraction of spare workers",
        kind="FRACTION",
    ),
    flag_setting(
        "--spares-from",
        20,
        read.whole_number(1, 1_000_000),
        "smallest number of workers for which spares are recommended",
        kind="N",
    ),
    path_setting(
        "--slo", "YAML file of SLOs by model: ttft_ms, itl_ms, rps; requires --degradation"
    ),
)
