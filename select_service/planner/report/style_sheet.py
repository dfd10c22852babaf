"""Style sheet of a report, light or dark by the reader's system."""

STYLE = """
:root{--paper:#fff;--ink:#1c2430;--soft:#5b6675;--line:#e3e7ec;--ready:#3f78c3;--ground:#cddff4;--start:#e8a33d;--drain:#9aa5b1;
--decided:#1c2430;--forecast:#8a4fbe;--slo:#cf3a3a;--good:#1d8348;--bad:#cf3a3a}
@media(prefers-color-scheme:dark){:root{--paper:#14181e;--ink:#e4e8ee;--soft:#99a4b3;--line:#2a313b;
--ready:#5b96e3;--ground:#24405f;--start:#e0a84e;--drain:#6b7785;--decided:#f2f4f7;--forecast:#b98ae6;--slo:#f06a6a;--good:#58c98a;
--bad:#f06a6a}}
*{box-sizing:border-box}
body{font:14px/1.45 system-ui,sans-serif;background:var(--paper);color:var(--ink);
max-width:1100px;margin:0 auto;padding:16px}
h1{font-size:22px;margin:4px 0 12px}
h2{font-size:18px;margin:28px 0 8px;border-bottom:1px solid var(--line);padding-bottom:4px}
h2 small{font-size:13px;font-weight:400;color:var(--soft)}
h3{font-size:14px;margin:14px 0 4px}
a{color:var(--ready)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 10px;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--soft);font-weight:500;white-space:nowrap}
th:first-child,td:first-child,.text th,.text td{text-align:left}
.text td{white-space:nowrap}.text td:last-child,.text td:nth-child(4){white-space:normal}
.wide{overflow-x:auto}
.good{color:var(--good)}.bad{color:var(--bad)}
figure{margin:10px 0}
figcaption{font-size:13px;margin-left:52px}
.key{color:var(--soft);margin-left:14px;white-space:nowrap}
.key i{display:inline-block;width:14px;height:3px;margin-right:5px;vertical-align:middle;
background:currentColor}
i.ready,i.observed{color:var(--ready)}i.starting{color:var(--start)}
i.draining{color:var(--drain)}i.decided{color:var(--decided)}
i.out{color:var(--slo);opacity:.45}
i.forecast{color:var(--forecast)}i.slo{color:var(--slo)}
i.planned{color:var(--forecast);opacity:.35;height:8px!important}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font-size:11px;fill:var(--soft)}
svg path{fill:none}
.grid{stroke:var(--line);stroke-width:1}
.line{stroke-width:1.6;stroke-linejoin:round;stroke-linecap:round}
.step{stroke-width:1.3}
.observed{stroke:var(--ready)}.forecast{stroke:var(--forecast)}
.decided{stroke:var(--decided);stroke-dasharray:4 3}
svg .area.ready{fill:var(--ground);stroke:var(--ready);stroke-width:1}
svg .area.starting{fill:var(--start)}
svg .area.draining{fill:var(--drain)}
svg .area.out{fill:var(--slo);fill-opacity:.45}
svg .band{fill:var(--forecast);fill-opacity:.18}
.level{stroke:var(--slo);stroke-width:1.2;stroke-dasharray:6 4}
svg .mark{stroke:var(--paper);stroke-width:.8;cursor:help}
svg .mark.up{fill:var(--good)}svg .mark.down{fill:var(--slo)}
details{margin:10px 0}summary{cursor:pointer;color:var(--soft)}
@media print{details{display:block}}
"""
