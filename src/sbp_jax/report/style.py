"""The style of reports: colours that read on light and dark pages, chosen by the page, the notebook, or the system."""

_LIGHT = """--ink:#1b1f24;--dim:#59636e;--page:#ffffff;--card:#f6f8fa;--line:#d1d9e0;--hollow:#e6eaef;--compute:#2a6fc9;
--wait:#c2570c;--copy:#8a6d00;--update:#5c7fb0;--back:#7fa9e0;--limit:#b3261e;--good:#1a7f37;--area:#2a6fc922;
--bsig:#e3e7ec;--bink:#333b44;"""
_DARK = """--ink:#e8ebee;--dim:#a3adb8;--page:#14171b;--card:#1d2126;--line:#3a424c;--hollow:#2b3138;--compute:#5b9bf0;
--wait:#f0883e;--copy:#d9b430;--update:#8fa9cc;--back:#3c6cae;--limit:#ff7b72;--good:#56d364;--area:#5b9bf033;
--bsig:#353c45;--bink:#dce1e6;"""

CSS = f"""
.sbp{{{_LIGHT}color:var(--ink);background:var(--page);
font:14px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
max-width:1180px}}
@media (prefers-color-scheme:dark){{.sbp{{{_DARK}}}}}
body[data-jp-theme-light="true"] .sbp,body.vscode-light .sbp,html[theme="light"] .sbp{{{_LIGHT}}}
body[data-jp-theme-light="false"] .sbp,body.vscode-dark .sbp,html[theme="dark"] .sbp{{{_DARK}}}
.sbp *{{box-sizing:border-box}}
.sbp h1{{font-size:22px;margin:0 0 2px;font-weight:650}}
.sbp h2{{font-size:16px;margin:30px 0 8px;font-weight:650}}
.sbp h3{{font-size:14px;margin:14px 0 6px;font-weight:600}}
.sbp p{{margin:4px 0 8px}}
.sbp .sub,.sbp .note{{color:var(--dim)}}
.sbp .tiles{{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:10px;margin:14px 0}}
.sbp .box{{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 12px}}
.sbp .box b{{display:block;font-size:20px;font-weight:650;font-variant-numeric:tabular-nums;white-space:nowrap}}
.sbp .box span{{color:var(--dim);font-size:12px}}
.sbp .scroll{{overflow-x:auto;margin:4px 0 8px}}
.sbp table{{border-collapse:collapse;font-size:13px;width:100%;color:var(--ink);background:transparent;border:0}}
.sbp caption{{text-align:left;color:var(--dim);padding:0 0 6px;font-size:13px}}
.sbp th{{text-align:left;font-weight:600;color:var(--dim);border:0;border-bottom:1px solid var(--line);
padding:4px 10px 4px 0;white-space:nowrap;background:transparent}}
.sbp td{{border:0;border-bottom:1px solid var(--line);padding:5px 10px 5px 0;vertical-align:top;text-align:left}}
.sbp tr{{background:transparent!important}}
.sbp .n{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
.sbp code,.sbp .mono{{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:none;color:inherit;
padding:0}}
.sbp td.mono{{white-space:nowrap;padding:6px 10px 4px 0}}
.sbp .wrap{{overflow-wrap:anywhere}}
.sbp .sig{{display:inline-flex;gap:2px;vertical-align:1px;white-space:nowrap}}
.sbp .sig i{{font:600 11px/16px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;border-radius:3px;padding:0 4px;
color:#fff}}
.sbp .sig i.b{{background:var(--bsig);color:var(--bink)}}
.sbp .s0{{background:#1f66c1;fill:#1f66c1}}.sbp .s1{{background:#ad4b08;fill:#ad4b08}}
.sbp .s2{{background:#177245;fill:#177245}}.sbp .s3{{background:#a12a6b;fill:#a12a6b}}
.sbp .s4{{background:#0e6f7a;fill:#0e6f7a}}
.sbp .p{{background:#6c3bb5;fill:#6c3bb5}}.sbp rect.b{{fill:var(--bsig)}}
.sbp text.b{{fill:var(--bink)}}.sbp text.on{{fill:#fff}}
.sbp details{{margin:6px 0}}
.sbp summary{{cursor:pointer;color:var(--dim)}}
.sbp summary:hover,.sbp summary:focus{{color:var(--ink)}}
.sbp svg.full{{width:100%}}.sbp svg{{max-width:100%;height:auto;display:block}}
.sbp svg.inline{{display:inline;vertical-align:-3px}}
.sbp svg text{{fill:var(--ink);font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}}
.sbp svg text.dim{{fill:var(--dim)}}.sbp svg text.part{{fill:var(--ink);font-weight:700}}
.sbp svg text.mono{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}}
.sbp svg text.limitword{{fill:var(--limit)}}.sbp svg text.b{{fill:var(--bink)}}.sbp svg text.on{{fill:#fff}}
.sbp .tile{{fill:var(--card);stroke:var(--line)}}.sbp .hollow{{fill:var(--hollow)}}
.sbp .held{{fill:color-mix(in oklab,#2a6fc9,#d9661f calc(var(--k)*100%))}}
.sbp .partial{{fill-opacity:.45;stroke:var(--ink);stroke-dasharray:3 2}}
.sbp .compute{{fill:var(--compute)}}.sbp .back{{fill:var(--back)}}.sbp .update{{fill:var(--update)}}
.sbp .link{{fill:var(--wait)}}.sbp .copy{{fill:var(--copy)}}.sbp .faint{{fill-opacity:.35}}
.sbp .wait.faint{{fill-opacity:.18}}.sbp .wait{{fill:var(--wait)}}
.sbp .hidden{{fill:none;stroke:var(--wait);stroke-width:1.5}}
.sbp .axis{{stroke:var(--line)}}.sbp .flow{{stroke:var(--dim);fill:none;stroke-width:1.5}}
.sbp .arc{{stroke:var(--dim);fill:none;stroke-dasharray:4 3}}.sbp .head{{fill:var(--dim)}}
.sbp .area{{fill:var(--area)}}.sbp .curve{{stroke:var(--compute);fill:none;stroke-width:1.8}}
.sbp .limit{{stroke:var(--limit);stroke-width:1.5;stroke-dasharray:6 4}}.sbp .mark{{fill:var(--limit)}}
.sbp .legend{{display:flex;flex-wrap:wrap;gap:4px 16px;color:var(--dim);font-size:12px;margin:2px 0 8px}}
.sbp .legend s{{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px;vertical-align:-1px}}
.sbp .legend .b{{background:var(--bsig);border:1px solid var(--line)}}
.sbp .swatch{{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:7px}}
.sbp .side{{display:flex;flex-wrap:wrap;gap:18px 26px}}
.sbp .side figure{{margin:0}}.sbp figcaption{{font-size:12px;color:var(--dim);margin:0 0 4px;
max-width:560px}}
.sbp .good{{color:var(--good)}}.sbp .more{{color:var(--limit)}}
.sbp input[type=search]{{font:inherit;padding:4px 8px;border:1px solid var(--line);border-radius:6px;
background:var(--card);color:var(--ink);min-width:240px;margin:2px 0 6px}}
.sbp .k0{{background:#2a6fc9;fill:#2a6fc9}}.sbp .k1{{background:#c2570c;fill:#c2570c}}
.sbp .k2{{background:#1f8a54;fill:#1f8a54}}.sbp .k3{{background:#b0408f;fill:#b0408f}}
.sbp .k4{{background:#8a6d00;fill:#8a6d00}}.sbp .k5{{background:#0f7f8c;fill:#0f7f8c}}
.sbp .k6{{background:#7a5cc2;fill:#7a5cc2}}.sbp .k7{{background:#7d8590;fill:#7d8590}}
"""
