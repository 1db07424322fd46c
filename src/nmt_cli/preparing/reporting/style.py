"""The style sheet of the report's page: light and dark, from a phone to paper, without anything to load."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1f2328; --quiet: #59636e; --line: #d1d9e0; --panel: #f6f8fa;
  --source: #0b62c4; --target: #c2570c; --bar: #8b6fc9; --warn: #fff4d6; --warn-line: #b07d00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #11151a; --text: #e6eaef; --quiet: #9aa5b1; --line: #39424d; --panel: #1a2027;
    --source: #6cb0ff; --target: #ffa45c; --bar: #a58ce0; --warn: #33290f; --warn-line: #d9a520;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 4rem; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif;
}
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 3rem 0 .5rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); font-size: 1.3rem; }
h3 { margin: 1.6rem 0 .3rem; font-size: 1rem; }
p { margin: .4rem 0; max-width: 52rem; }
.quiet, caption, figcaption, footer { color: var(--quiet); font-size: .9rem; }
.languages { margin-left: .2rem; color: var(--quiet); font-weight: 400; white-space: nowrap; }
.source { color: var(--source); } .target { color: var(--target); }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px; }
.key.source, rect.source { background: var(--source); fill: var(--source); }
.key.target, rect.target { background: var(--target); fill: var(--target); }
.figures {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(8.6rem, 1fr)); gap: .75rem;
  margin: 1.5rem 0; padding: 0;
}
.figures div { padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 8px; background: var(--panel); }
.figures dt { color: var(--quiet); font-size: .85rem; }
.figures dd { margin: 0; font-size: 1.35rem; font-weight: 600; line-height: 1.3; font-variant-numeric: tabular-nums; }
.figures dd small { display: block; color: var(--quiet); font-size: .8rem; font-weight: 400; }
.warnings { margin: 1.2rem 0; padding: .7rem 1rem; border-left: 5px solid var(--warn-line); background: var(--warn); }
.warnings h2 { margin: 0; padding: 0; border: 0; font-size: 1.05rem; }
.warnings ul { margin: .3rem 0 0; padding-left: 1.2rem; }
.wide { overflow-x: auto; }
table { width: 100%; margin: .6rem 0; border-collapse: collapse; font-size: .92rem; }
caption { padding: .2rem 0; text-align: start; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: start; vertical-align: top; }
th { font-weight: 600; } thead th { color: var(--quiet); font-size: .85rem; vertical-align: bottom; }
th.number, td.number { text-align: end; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text { overflow-wrap: anywhere; } .pair td.text { width: 42%; } td.where { width: 16%; overflow-wrap: anywhere; }
.share { display: flex; align-items: center; gap: .8rem; margin: .2rem 0 .4rem; }
.share .track { flex: 1; height: .75rem; border-radius: 3px; background: var(--panel); }
.share .fill { height: 100%; min-width: 2px; border-radius: 3px; background: var(--bar); }
.share .number { min-width: 8.5rem; font-variant-numeric: tabular-nums; text-align: end; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1rem; }
figure { margin: .6rem 0; } svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 12px; font-family: inherit; }
svg .grid { stroke: var(--line); } svg .hit { fill: transparent; } svg g:hover .hit { fill: var(--line); opacity: .5; }
.example {
  margin: 1rem 0; padding: .7rem .9rem; border: 1px solid var(--line); border-radius: 8px; break-inside: avoid;
}
.example p { max-width: none; } .example p.pieces { margin-bottom: .8rem; line-height: 1.9; }
.example p.pieces:last-child { margin-bottom: 0; }
.tag { display: inline-block; min-width: 2.2rem; margin-right: .5rem; font-size: .8rem; font-weight: 600; }
.pieces span { margin: 0 1px; padding: .08rem .3rem; border-radius: 4px; background: var(--panel);
  font: .82rem ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
code { font: .88em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
footer { margin-top: 3rem; padding-top: .8rem; border-top: 1px solid var(--line); }
@media (max-width: 40rem) {
  body { padding: 1rem .8rem 3rem; }
  .share { flex-wrap: wrap; gap: 0 .8rem; } .share .track { flex-basis: 100%; } .share .number { min-width: 0; }
  .pair thead { position: absolute; clip-path: inset(50%); height: 1px; overflow: hidden; }
  .pair, .pair tbody, .pair tr, .pair td { display: block; }
  .pair td.text, .pair td.where { width: auto; padding: .15rem 0; border: 0; }
  .pair tr { padding: .4rem 0; border-bottom: 1px solid var(--line); }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2, h3 { break-after: avoid; } tr, figure { break-inside: avoid; }
  .track, .fill, .key, .pieces span, rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
