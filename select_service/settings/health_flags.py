"""The settings of health: see docs/health.md.

The defaults are those of `core.health.rules`, which is not imported where health is off.
"""

from select_service.settings import values as read
from select_service.settings.setting import Setting, cli

LOOPBACK = ("127.0.0.0/8", "::1/128")

HEALTH: tuple[Setting, ...] = (
    cli(
        "--health-checks",
        "off",
        read.choice("off", "on"),
        "health checks; on: every rank is sent short prompts again and again, and sick ones get no "
        "requests",
    ),
    cli(
        "--health-profile",
        "default",
        read.choice("default", "document"),
        "defaults of what is not given itself; document: those of the document that health follows "
        "(no backoff, no limit, no slow start)",
    ),
    cli(
        "--health-interval-secs",
        30.0,
        read.number(0.1, 3600),
        "time between two checks of a rank",
        "health_interval_s",
    ),
    cli(
        "--health-timeout-secs",
        5.0,
        read.number(0.05, 600),
        "longest wait for the answer to a check",
        "health_timeout_s",
    ),
    cli("--health-retries", 2, read.whole(0, 10), "further attempts of a check that fails"),
    cli(
        "--health-confirm-secs",
        2.0,
        read.number(0, 3600),
        "time from a failing check to the one that confirms it",
        "health_confirm_s",
    ),
    cli(
        "--health-failures",
        3,
        read.whole(1, 1000),
        "failing checks in a row that take a rank out",
    ),
    cli(
        "--breaker-recovery-secs",
        60.0,
        read.number(0.1, 86_400),
        "time until a rank that was taken out is checked again",
        "breaker_recovery_s",
    ),
    cli(
        "--breaker-backoff",
        2.0,
        read.number(1, 100),
        "factor by which that time grows with every probe that fails, up to 600 s",
        kind="FACTOR",
    ),
    cli(
        "--health-max-eject",
        0.5,
        read.number(0, 1),
        "part of the ranks of a model and tenant that slowness and the like may take out, one "
        "at least; 1 = no limit",
        kind="FRACTION",
    ),
    cli(
        "--health-slow-start-secs",
        30.0,
        read.number(0, 3600),
        "time from a recovery to the full share of requests",
        "health_slow_start_s",
    ),
    cli(
        "--drain-timeout-secs",
        300.0,
        read.number(0, 86_400),
        "time after which what is left on a draining rank is released",
        "drain_timeout_s",
    ),
    cli(
        "--dead-after-secs",
        600.0,
        read.number(0, 604_800),
        "time after which a rank without a recovery is dead",
        "dead_after_s",
    ),
    cli(
        "--canary-config",
        None,
        read.text,
        "YAML file of prompts by model; none = prompts of random tokens",
    ),
    cli(
        "--health-state",
        None,
        read.text,
        "file that keeps the right answers over a restart; none = learnt anew",
        kind="FILE",
    ),
    cli(
        "--health-reporters",
        LOOPBACK,
        read.networks,
        "comma-separated networks whose reports of failures count without a reservation; "
        "nobody = none",
        kind="NETWORK[,NETWORK]",
    ),
    cli(
        "--degradation",
        "off",
        read.choice("off", "observe", "auto"),
        "reaction when the ranks that are left cannot carry the promises; observe: levels are "
        "shown; auto: less is let in, too",
    ),
    cli(
        "--slo",
        None,
        read.text,
        "YAML file of promises by model: ttft_ms, itl_ms, rps; counts with --degradation",
        kind="FILE",
    ),
)
