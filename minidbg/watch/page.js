"use strict";
// The server tells states, this file draws them. All texts go into the page as text; HTML comes only from the server's own templates.
const FAILING = ["reproduces", "changed", "crashed", "timeout", "flaky"];
const ORDER = ["crashed", "timeout", "changed", "flaky", "reproduces", "invalid", null, "fallback", "skipped", "gone"];
const ROW_PX = 30, SPARE_ROWS = 20, PHONE_ROWS = 100, FEW_ROWS = 100, MOST_FLIPS = 50, FLIPS_IN_VIEW = 3, SILENCE_MS = 40000, HIDDEN_MS = 10000;
const [VERDICT, SINCE, SECONDS, FRESH, NOTE, MAYBE] = [0, 1, 2, 3, 4, 5];
const $ = id => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter(one => one !== ""));
  return made;
};
const role = (element, name) => { element.setAttribute("role", name); return element; };

const repros = new Map();  // name -> { about, cells: column -> cell, row }
let head = JSON.parse($("state").textContent), columns = [], flips = [], names = [], displayed = [], present = "", limit = PHONE_ROWS;
const phone = matchMedia("(max-width: 700px)");
let active = { name: "", index: 0 }, listPlace = "", listScroll = 0;

// ---- what the server tells ----

function takeAll(state) {
  head = state; columns = state.columns; flips = state.flips;
  repros.clear();
  for (const [name, about, cells] of state.rows) repros.set(name, { about: about || {}, cells, row: null });
  drawColumns(); sortNames(); drawHead(); drawFlips(); draw(true); refreshRepro();
}

function takeChange(change) {
  const changed = new Set(), flipped = change.flips.map(one => `${one.repro}\n${one.device}`);
  head = { ...head, ...change };
  if (change.dim) for (const repro of repros.values()) for (const column in repro.cells) { repro.cells[column][FRESH] = 0; repro.row?.states[column]?.classList.remove("fresh"); }
  for (const [name, about] of change.rows) {
    if (about === null) { repros.delete(name); names = names.filter(one => one !== name); displayed = displayed.filter(one => one !== name); continue; }
    entry(name).about = about; changed.add(name);
  }
  let wider = false;
  for (const [name, column, cell] of change.cells) {
    entry(name).cells[column] = cell; changed.add(name);
    if (!columns.includes(column)) { columns = [...columns, column].sort(); wider = true; }
  }
  if (wider) { drawColumns(); draw(true); }
  for (const name of changed) {
    if (repros.get(name).row) fillRow(name);
    if (!displayed.includes(name) && matches(name)) displayed.push(name);
  }
  drawRows();
  for (const one of flipped) { const [name, column] = one.split("\n"), td = repros.get(name)?.row?.states[column]; if (td) { td.classList.remove("flipped"); void td.offsetWidth; td.classList.add("flipped"); } }
  if (change.flips.length) {
    flips = [...flips, ...change.flips].slice(-MOST_FLIPS); drawFlips();
    $("told").textContent = change.flips.length > 3 ? `${change.flips.length} flips` : change.flips.map(one => `${one.kind} ${one.repro} on ${one.device}`).join("; ");
  }
  drawHead();
  if (changed.has(place().get("repro"))) refreshRepro();
}

function entry(name) {
  if (!repros.has(name)) { repros.set(name, { about: {}, cells: {}, row: null }); names.push(name); }
  return repros.get(name);
}

// ---- news, for as long as somebody looks ----

let source = null, heard = 0, hiding = 0;
function connect() {
  source?.close();
  const mine = source = new EventSource(`events?${new URLSearchParams({ boot: head.boot, seq: head.seq })}`);
  const hear = take => event => { heard = Date.now(); linked(true); if (take) take(JSON.parse(event.data)); };
  heard = Date.now();
  mine.onopen = hear(); mine.addEventListener("here", hear());
  mine.addEventListener("state", hear(takeAll)); mine.addEventListener("change", hear(takeChange));
  // not the browser's own reconnection: it would ask from the event at which this stream began
  mine.onerror = () => { mine.close(); linked(false); setTimeout(() => { if (source === mine) connect(); }, 1000); };
}
function linked(well) {
  const text = well ? "live" : "not connected: what is shown is old; trying again";
  if ($("link").textContent !== text) { $("link").textContent = text; $("link").classList.toggle("lost", !well); }
}
function follow() {
  // a browser has six connections to a host for all of its tabs
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(() => { source.close(); source = null; }, HIDDEN_MS);
    else if (!source) connect();
  });
  setInterval(() => { if (source && Date.now() - heard > SILENCE_MS) { linked(false); connect(); } }, 5000);
  connect();
}

// ---- above the rows ----

const clock = at => { const then = new Date(at * 1000); return (Date.now() - then > 72e6 ? then.toISOString().slice(0, 10) + " " : "") + then.toTimeString().slice(0, 8); };
const ago = at => { const s = Math.max(0, Date.now() / 1000 - at); for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) if (s >= size) return `${Math.floor(s / size)} ${unit}`; return `${Math.floor(s)} s`; };
const stem = name => name.replace(/\.py$/, ""), base = name => stem(name).split("/").pop(), folder = name => name.slice(0, name.lastIndexOf("/") + 1);
const link = (name, column, text) => make("a", { href: `#${new URLSearchParams(column ? { repro: name, column } : { repro: name })}`, textContent: text });

function drawHead() {
  $("home").textContent = head.home;
  const sweeping = head.began !== null && head.total > 0, count = counts();
  $("activity").textContent = [head.activity, sweeping ? `${head.seen} of ${head.total}` : "", head.cause && `changed: ${head.cause}`, head.machine.torch && `torch ${head.machine.torch}`].filter(Boolean).join("  ·  ");
  Object.assign($("progress"), { hidden: !sweeping, max: head.total || 1, value: head.seen });
  $("rows").classList.toggle("sweeping", sweeping);
  const banners = [head.build_failure, ...head.broken.map(text => `broken: ${text}`)].filter(Boolean);
  if ($("banners").dataset.of !== banners.join("\n")) { $("banners").dataset.of = banners.join("\n"); $("banners").replaceChildren(...banners.map(text => make("div", { className: "banner", textContent: text }))); }
  $("notices").hidden = !head.notices.length;
  $("notices").lastElementChild.replaceChildren(...head.notices.map(([at, text]) => make("li", { textContent: `${clock(at)} ${text}` })));
  document.title = `${count.failing ? `(${count.failing} failing) ` : ""}minidbg watch ${head.home}`;
  const shown = place().get("show") || "", kinds = ["", "failing", ...ORDER.filter(one => one && count[one])];
  if (shown && !kinds.includes(shown)) kinds.push(shown);
  const chips = kinds.map(kind => {
    const chip = make("button", { type: "button", value: kind, className: FAILING.includes(kind) || kind === "gone" ? kind : "" }, make("b", { textContent: kind || "all" }), ` ${count[kind] || 0}`);
    chip.setAttribute("aria-pressed", String(kind === shown));
    return chip;
  });
  const at = document.activeElement?.parentElement === $("counts") ? document.activeElement.value : null;
  $("counts").replaceChildren(...chips);
  if (at !== null) chips.find(chip => chip.value === at)?.focus();
  $("fold").textContent = shown ? `${shown} ${count[shown] || 0}` : `${count.failing} of ${count[""]} fail`;
}

function counts() {
  const found = { "": repros.size, failing: 0 };
  for (const repro of repros.values()) {
    const verdicts = new Set(statesOf(repro).map(cell => cell[VERDICT]));
    for (const one of verdicts) found[one] = (found[one] || 0) + 1;
    if (FAILING.some(one => verdicts.has(one))) found.failing++;
  }
  return found;
}
const statesOf = repro => { const one = place().get("column"); return one ? (repro.cells[one] ? [repro.cells[one]] : []) : Object.values(repro.cells); };

function drawFlips() {
  const items = [...flips].reverse().map(one => make("li", {}, make("time", { className: "dim", textContent: clock(one.at) }), make("span", { className: `kind ${one.kind}`, textContent: one.kind }),
    Object.assign(link(one.repro, one.device, base(one.repro)), { title: one.repro }), make("span", { textContent: columns.length > 1 ? `[${one.device}]` : "" }), make("span", { className: "dim where", textContent: [one.between, one.files.slice(0, 3).join(", ")].filter(Boolean).join("  ") })));
  const list = (name, some) => { const made = make("ol", {}, ...some); made.setAttribute("aria-label", name); return made; };
  const earlier = items.splice(FLIPS_IN_VIEW), open = $("flips").querySelector("details")?.open || false;
  $("flips").replaceChildren(...(items.length ? [list("latest flips, newest first", items)] : []),
    ...(earlier.length ? [make("details", { open }, make("summary", { textContent: `${earlier.length} earlier` }), list("earlier flips", earlier))] : []));
}

// ---- the rows ----

function drawColumns() {
  const table = $("rows"), shown = [...columns, "since", "took", "message"];
  table.style.setProperty("--columns", `280px repeat(${columns.length}, 124px) 76px 76px minmax(240px, 1fr)`);
  table.style.setProperty("--least", `${672 + 124 * columns.length}px`);
  const heads = ["repro", ...shown].map(name => role(make("th", { scope: "col", textContent: name }), "columnheader"));
  table.tHead.replaceChildren(role(make("tr", {}, ...heads), "row"));
  const one = place().get("column") || "";
  $("one-column").hidden = columns.length < 2;
  $("column").replaceChildren(make("option", { value: "", textContent: "all" }), ...columns.map(name => make("option", { value: name, textContent: name, selected: name === one })));
  for (const repro of repros.values()) repro.row = null;
  present = "";
}

function rowOf(name) {
  const repro = repros.get(name);
  if (!repro.row) {
    const row = repro.row = role(make("tr"), "row"), first = link(name, "", base(name));
    first.tabIndex = -1; first.title = name; row.dataset.name = name; row.states = {};
    row.append(role(make("th", { scope: "row" }, first, folder(name) && ` ${folder(name)}`), "rowheader"));
    for (const column of columns) { const td = row.states[column] = role(make("td"), "gridcell"); td.dataset.column = column; row.append(td); }
    for (const kind of ["since", "took", "note"]) { row[kind] = role(make("td", { className: kind === "note" ? "note" : "plain" }), "gridcell"); row.append(row[kind]); }
    fillRow(name);
  }
  return repro.row;
}

function fillRow(name) {
  const { about, cells, row } = repros.get(name);
  row.className = about.muted ? "muted" : "";
  for (const column of columns) {
    const td = row.states[column], cell = cells[column], text = cell ? (cell[VERDICT] || "?") + (cell[MAYBE] ? ` → ${cell[MAYBE]}?` : "") : "–";
    td.className = cell ? `state ${cell[VERDICT] || ""}${cell[FRESH] ? " fresh" : ""}` : "none";
    if (td.textContent === text) continue;
    if (!cell) { td.replaceChildren(text); continue; }
    const to = link(name, column, text);
    to.tabIndex = -1; td.replaceChildren(to);
  }
  const [since, took, note] = summary(name);
  row.since.textContent = since ? ago(since) : ""; row.took.textContent = took ? `${took.toFixed(1)} s` : "";
  row.note.textContent = row.note.title = note;
}

function summary(name) {
  const { about, cells } = repros.get(name), all = Object.values(cells);
  const notes = [about.damage, about.muted && `muted: ${about.muted}`, ...all.map(cell => cell[NOTE])];
  return [Math.max(0, ...all.map(cell => cell[SINCE] || 0)), Math.max(0, ...all.map(cell => cell[SECONDS])), (notes.find(Boolean) || "").split("\n")[0]];
}

function matches(name) {
  const repro = repros.get(name), at = place(), shown = at.get("show"), states = statesOf(repro);
  if (at.get("column") && !states.length) return false;
  if (shown && !states.some(cell => shown === "failing" ? FAILING.includes(cell[VERDICT]) || FAILING.includes(cell[MAYBE]) : cell[VERDICT] === shown)) return false;
  const words = (at.get("q") || "").toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return true;
  const text = [name, ...Object.values(repro.about), ...states.map(cell => cell[NOTE])].join("\n").toLowerCase();
  return words.every(word => text.includes(word));
}

function sortNames() {
  const rank = name => Math.min(ORDER.length, ...statesOf(repros.get(name)).map(cell => ORDER.indexOf(cell[VERDICT])));
  const key = { since: name => -summary(name)[0], took: name => -summary(name)[1], name: () => 0 }[place().get("order")] || rank;
  names = [...repros.keys()].map(name => [key(name), name]).sort((a, b) => a[0] - b[0] || (a[1] < b[1] ? -1 : 1)).map(one => one[1]);
}

function draw(anew = false) {
  const found = names.filter(matches);
  if (!anew && found.length === displayed.length && found.every((name, index) => name === displayed[index])) return;
  displayed = found; limit = PHONE_ROWS; present = "";
  drawRows();
  activate(found.includes(active.name) ? active.name : found[0], active.index, false);
}

function drawRows() {  // of a long list only what is in view, and a little more: a browser cannot scroll ten thousand cells smoothly
  const frame = $("frame"), body = $("rows").tBodies[0], count = displayed.length, all = phone.matches || isFew();
  $("rows").classList.toggle("few", isFew());
  const first = all ? 0 : Math.max(0, Math.floor(frame.scrollTop / ROW_PX / 10) * 10 - SPARE_ROWS);
  const end = all ? Math.min(count, limit) : Math.min(count, first + Math.ceil(innerHeight / ROW_PX) + 2 * SPARE_ROWS + 10);
  const rows = displayed.slice(first, end), key = rows.join("\n");
  $("rows").setAttribute("aria-rowcount", count + 1);
  $("more").replaceChildren(phone.matches && count > limit ? make("button", { type: "button", textContent: `${count - limit} more`, onclick: () => { limit += PHONE_ROWS; drawRows(); } }) : count ? "" : "no repro is like that");
  body.style.paddingTop = `${first * ROW_PX}px`; body.style.paddingBottom = all ? 0 : `${(count - end) * ROW_PX}px`;
  if (key === present) return;
  present = key;
  const at = document.activeElement;
  body.replaceChildren(...rows.map((name, index) => { const row = rowOf(name); row.setAttribute("aria-rowindex", first + index + 2); return row; }));
  if (at !== document.activeElement && at.isConnected) at.focus({ preventScroll: true });
}

const isFew = () => displayed.length <= FEW_ROWS;  // all of them are drawn, each as high as its message needs

function activate(name, index, focus = true) {
  const links = one => [...(repros.get(one)?.row?.querySelectorAll("a") || [])];
  for (const one of links(active.name)) one.tabIndex = -1;
  const measured = !phone.matches && !isFew();
  if (focus && measured) {
    const frame = $("frame"), top = displayed.indexOf(name) * ROW_PX, room = frame.clientHeight - 2 * ROW_PX - 12;
    if (top < frame.scrollTop) frame.scrollTop = top; else if (top > frame.scrollTop + room) frame.scrollTop = top - room;
    drawRows();
  }
  const to = links(name);
  active = { name: name || "", index: Math.max(0, Math.min(index, to.length - 1)) };
  if (to.length) { to[active.index].tabIndex = 0; if (focus) to[active.index].focus({ preventScroll: measured }); }
}

// ---- one repro ----

async function openRepro(name, column) {
  const view = $("repro");
  view.dataset.name = name;
  view.replaceChildren(...page(name, column, alone(name)));
  if (head.alone) return;
  const told = await ask(`repro?${new URLSearchParams({ repro: name })}`);
  if (view.dataset.name !== name) return;
  if (told.error) { view.replaceChildren(backLink(), make("p", { className: "complaint", textContent: told.error })); return; }
  view.replaceChildren(...page(name, column, told));
  if (told.refusal) return;
  const answer = await fetch(`story?${new URLSearchParams({ repro: name })}`).catch(error => ({ ok: false, text: () => String(error) })), html = await answer.text();
  if (view.dataset.name !== name) return;
  if (!answer.ok) { $("story").replaceChildren(make("p", { className: "complaint", textContent: `No more can be shown: ${html}` })); return; }
  $("story").innerHTML = html;
}
function waitingForStory() {
  const began = Date.now(), line = make("p", { className: "dim" });
  const tick = () => {
    line.textContent = `An interpreter with torch reads the captured graph and the log of its reduction: ${Math.round((Date.now() - began) / 1000)} s`;
    if (line.isConnected || Date.now() - began < 1000) setTimeout(tick, 1000);
  };
  tick();
  return line;
}
let refreshing = 0;
function refreshRepro() {
  const name = place().get("repro");
  clearTimeout(refreshing);
  if (name && !head.alone) refreshing = setTimeout(async () => {
    const told = await ask(`repro?${new URLSearchParams({ repro: name })}`);
    if (told.error || $("repro").dataset.name !== name) return;
    $("news")?.replaceWith(news(told)); $("seen")?.replaceWith(seen(name, place().get("column"), told));
  }, 300);
}
const ask = async address => { try { const answer = await fetch(address); return answer.ok ? await answer.json() : { error: await answer.text() }; } catch (error) { return { error: String(error) }; } };

function alone(name) {  // what the matrix itself knows
  const { about, cells } = repros.get(name) || { about: {}, cells: {} };
  const rows = Object.entries(cells).map(([column, cell]) => [column, { runs: [], state: { verdict: cell[VERDICT], since: cell[SINCE] }, last: { verdict: cell[VERDICT], seconds: cell[SECONDS], message: cell[NOTE] } }]);
  return { title: base(name), about, message: "", news: [], columns: Object.fromEntries(rows), flips: flips.filter(one => one.repro === name), model: "", script: "", refusal: "" };
}
const backLink = () => make("p", {}, make("a", { href: `#${listPlace}`, textContent: "← all repros" }));
const command = name => `python ${name.startsWith("/") ? name : `${head.home}/${name}`}`;

function page(name, column, told) {
  const { about } = told, button = (text, onclick) => make("button", { type: "button", textContent: text, onclick });
  const facts = [about.kind && `${about.kind} in ${about.backend}`, about.owner && `owner: ${about.owner}`, about.muted && `muted: ${about.muted}`, about.damage];
  const line = make("p", { className: "dim", textContent: [name, ...facts].filter(Boolean).join("  ·  ") });
  if (about.issue) line.append("  ·  ", /^https?:\/\//.test(about.issue) ? make("a", { href: about.issue, rel: "noreferrer", textContent: about.issue }) : `issue ${about.issue}`);
  const tools = make("div", { className: "tools" }, button("Copy command", () => copy(command(name))), button("Copy link", () => copy(location.href)), ...(head.actions ? [button("Re-run", () => rerun(name))] : []), make("code", { className: "dim", textContent: command(name) }));
  const script = told.script ? [make("details", { className: "script" }, make("summary", { textContent: `The script, ${told.lines} lines` }), make("pre", { className: "code", innerHTML: told.script }), make("p", { className: "dim", textContent: "Without the part by which the script judges itself." }))] : told.refusal ? [make("p", { className: "complaint", textContent: told.refusal })] : [];
  const model = told.model ? [make("h2", { textContent: "What fails" }), make("pre", { className: "code", innerHTML: told.model })] : [];
  const story = make("div", { id: "story" }, ...(told.script ? [waitingForStory()] : []));
  return [backLink(), make("h2", { className: "title", textContent: told.title }), news(told), line, ...(told.message ? [make("pre", { className: "message", textContent: told.message })] : []), tools, ...model, seen(name, column, told), story, ...script];
}

const news = told => make("div", { id: "news" }, ...told.news.map(text => make("p", { className: "news", textContent: text })));

function figuresTable(figures) {  // of wrong results: the worst element, and how many are wrong
  const size = value => typeof value === "number" ? value.toExponential(1) : String(value), digits = value => Number.isFinite(value) ? String(Number(value.toPrecision(7))) : value;
  const row = { where: figures.where + (figures.index?.length ? ` at [${figures.index}]` : ""), got: digits(figures.actual), wanted: digits(figures.expected), error: "error" in figures ? `${size(figures.error)} ${figures.unit}` : undefined, allowed: "allowed" in figures ? size(figures.allowed) : undefined };
  const known = Object.entries(row).filter(([, value]) => value !== undefined);
  const cells = known.map(([name, value]) => { const td = make("td", { textContent: String(value) }); td.dataset.label = name; return td; });
  const rest = ["wrong" in figures && `${figures.wrong} of ${figures.elements} elements differ by more than allowed`, "rmse_eager" in figures && `RMSE against float64: backend ${size(figures.rmse_compiled)}, eager ${size(figures.rmse_eager)}, allowed ${size(figures.rmse_allowed)}`];
  return [make("table", { className: "stack" }, make("thead", {}, make("tr", {}, ...known.map(([name]) => make("th", { scope: "col", textContent: name })))), make("tr", {}, ...cells)), make("p", { className: "dim", textContent: rest.filter(Boolean).join("; ") })];
}

function seen(name, column, told) {
  const rows = Object.entries(told.columns), box = make("section", { id: "seen" }, make("h2", { textContent: "Where it was seen" }));
  if (!rows.length) { box.append(make("p", { className: "dim", textContent: "Not run yet." })); return box; }
  box.append(make("table", { className: "stack" }, make("thead", {}, make("tr", {}, ...["column", "now", "since", "runs, the latest on the right"].map(text => make("th", { scope: "col", textContent: text })))), ...rows.map(([one, { runs, state }]) => {
    const strip = make("div", { className: "strip" }, ...[...runs].reverse().map(([verdict, at, reason]) => make("i", { className: verdict, title: `${clock(at)} ${verdict} ${reason}` })));
    role(strip, "img").setAttribute("aria-label", runs.length ? `${runs.length} runs, the last ones: ${runs.slice(0, 5).map(run => run[0]).join(", ")}` : "no runs are known");
    const now = state?.verdict || "not judged", flaky = state?.failures && now === "flaky" ? ` ${state.failures} of ${state.runs}` : "";
    return make("tr", { className: one === column ? "chosen" : "" }, make("td", {}, link(name, one, one)), make("td", {}, make("span", { className: `verdict ${now}`, textContent: now + flaky })), make("td", { className: "whole", textContent: state?.since ? `${ago(state.since)}, ${clock(state.since)}` : "" }), make("td", { className: "text" }, strip));
  })));
  for (const flip of told.flips) box.append(make("p", {}, `${clock(flip.at)} `, make("b", { className: flip.kind, textContent: flip.kind }), ` on ${flip.device}: ${flip.before} → ${flip.after}  ${flip.between}`));
  const failing = rows.find(([, { last }]) => last && FAILING.includes(last.verdict))?.[0];
  for (const [one, { last }] of rows) if (last) {
    const { verdict, seconds, reason, message, stderr, figures, torch, at } = last, flat = text => text.replace(/[\s;]+/g, " ").trim();
    const above = flat(told.message), isAbove = text => above && (above.includes(flat(text)) || flat(text).endsWith(above));
    const texts = [...new Set([reason, message].filter(Boolean))], text = [...texts.filter(one => !isAbove(one)), stderr].filter(Boolean).join("\n\n");
    const about = [verdict, `${seconds.toFixed(2)} s`, at && clock(at), torch && `torch ${torch}`].filter(Boolean).join(", ");
    const known = texts.find(isAbove), type = known && flat(known).endsWith(above) && flat(known).slice(0, -above.length).replace(/: $/, "");
    const same = figures?.where ? "" : known ? `${type ? `${type}, with the` : "The"} message above.` : "It said nothing.";
    box.append(make("details", { open: one === (column || failing) }, make("summary", { textContent: `The last run on ${one}: ${about}` }), ...(figures?.where ? figuresTable(figures) : []), text ? make("pre", { textContent: text }) : make("p", { className: "dim", textContent: same })));
  }
  return box;
}

async function copy(text) {
  try { await navigator.clipboard.writeText(text); } catch {  // no clipboard where the address is neither https nor the loopback
    const area = make("textarea", { value: text });
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  $("told").textContent = `copied: ${text}`;
}
async function rerun(name) {
  const answer = await fetch(`rerun?${new URLSearchParams(name ? { repro: name } : {})}`, { method: "POST", headers: { "x-minidbg": "1" } }).catch(error => error);
  $("told").textContent = answer.ok ? `asked to run ${name || "all"} again` : "that could not be asked for";
}

// ---- addresses, clicks, keys ----

const place = () => new URLSearchParams(location.hash.slice(1));
function setPlace(name, value, sort = false) {
  const at = place();
  if (value) at.set(name, value); else at.delete(name);
  history.replaceState(null, "", `#${at}`);
  if (sort) sortNames();
  drawHead(); draw();
}
function route() {
  const at = place(), name = at.get("repro"), was = !$("list").hidden;
  if (name && was) listScroll = scrollY;
  $("list").hidden = Boolean(name); $("repro").hidden = !name;
  if (name) { openRepro(name, at.get("column")); scrollTo(0, 0); if (was) $("repro").focus(); return; }
  listPlace = at.toString(); $("repro").dataset.name = "";
  $("search").value = at.get("q") || ""; $("order").value = at.get("order") || ""; $("column").value = at.get("column") || "";
  drawHead(); draw();
  if (!was) { scrollTo(0, listScroll); activate(active.name, active.index); }
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName), name = place().get("repro"), inGrid = event.target.closest("#rows") || event.target === document.body;
  if (event.key === "Escape") { if (name) location.hash = listPlace; else if (event.target === $("search")) { $("search").value = ""; setPlace("q", ""); $("search").blur(); } return; }
  if (typing) { if (event.key === "Enter") event.preventDefault(); return; }
  const step = { ArrowUp: [-1, 0], k: [-1, 0], ArrowDown: [1, 0], j: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], PageUp: [-15, 0], PageDown: [15, 0], Home: [-1e6, 0], End: [1e6, 0] }[event.key];
  if (!name && step && (inGrid || event.key === "j" || event.key === "k")) {
    const at = Math.max(0, Math.min(displayed.indexOf(active.name) + step[0], displayed.length - 1));
    event.preventDefault(); activate(displayed[at], active.index + step[1]);
  } else if (event.key === "/" && !name) { event.preventDefault(); $("search").focus(); }
  else if (event.key === "f" && !name) setPlace("show", place().get("show") === "failing" ? "" : "failing");
  else if (event.key === "c" && (name || inGrid)) copy(command(name || active.name));
  else if (event.key === "r" && head.actions && (name || inGrid)) rerun(name || active.name);
}

$("search").addEventListener("input", () => setPlace("q", $("search").value));
$("order").addEventListener("change", () => setPlace("order", $("order").value, true));
$("column").addEventListener("change", () => setPlace("column", $("column").value, true));
$("counts").addEventListener("click", event => { const chip = event.target.closest("button"); if (chip) setPlace("show", chip.value); });
$("sort").addEventListener("click", () => { sortNames(); draw(); });
$("rerun-all").addEventListener("click", () => rerun(""));
$("fold").addEventListener("click", () => $("fold").setAttribute("aria-expanded", String($("filters").classList.toggle("open"))));
$("filters").addEventListener("submit", event => event.preventDefault());
$("rows").addEventListener("focusin", event => { const row = event.target.closest("tbody tr"); if (row && event.target.tagName === "A") activate(row.dataset.name, [...row.querySelectorAll("a")].indexOf(event.target), false); });
document.querySelector(".skip").addEventListener("click", event => { event.preventDefault(); activate(active.name, active.index); });
addEventListener("keydown", pressed);
addEventListener("hashchange", route);
addEventListener("resize", drawRows);
$("frame").addEventListener("scroll", drawRows, { passive: true });
setInterval(() => { for (const name of displayed) { const since = summary(name)[0], td = repros.get(name)?.row?.since; if (td && since && td.textContent !== ago(since)) td.textContent = ago(since); } }, 30000);

takeAll(head); route();
for (const one of document.querySelectorAll(".action")) one.hidden = !head.actions;
if (!head.alone) follow();
else {
  $("link").textContent = "a copy: it does not change"; $("link").className = "alone";
  if (head.reload_s) { $("link").textContent = "read anew now and then"; setTimeout(() => location.reload(), head.reload_s * 1000); }
}
