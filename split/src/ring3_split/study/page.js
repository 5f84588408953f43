"use strict";
// Everything is in the page: `study` is study.json; `packed` has each driver's functions, unpacked
// when it is opened.
const study = JSON.parse(document.getElementById("study").textContent);
const packed = JSON.parse(document.getElementById("details").textContent);
const $ = (id) => document.getElementById(id);
const choices = ["calls", "roots", "reach"];
const REACHES = ["data", "deferred", "timers"];
const FOLLOWED = { direct: 1, signature: 1 | 2, field: 1 | 4 }; // kinds of call, as in detail.py
let order = { key: "lines", down: true };
let open = null; // { row, detail }

const ruleName = () => choices.map((id) => $(id).value).join("-");
const ruleIndex = () => study.rules.findIndex((rule) =>
  choices.every((id) => rule[id] === $(id).value));
const share = (part, whole) => (whole ? (100 * part) / whole : 0);
const percent = (value) => value.toFixed(1) + " %";
const path = (row) => `${row.directory}/${row.name}`;
const number = (value) => value.toLocaleString("en");

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const cell = (value, kind = "n") => element("td", { class: kind }, value);
const bar = (value) => {
  const fill = element("i");
  fill.style.width = value + "%";
  return element("span", { class: "bar" }, fill);
};

function families() {
  const name = ruleName(), unit = $("unit").value;
  const heads = ["family", "drivers", "with roots", "functions", "critical", "share", "with roots",
    "mean of drivers", "mean, with roots", "lines", "critical lines", "paper"];
  const rows = study.families.filter((family) => family[unit].drivers).map((family) => {
    const scope = family[unit], tally = scope.rules[name];
    const said = family.paper ? `${family.paper.drivers}: ${percent(family.paper.critical)}` : "";
    return element("tr", family.name.includes("/") ? { class: "part" } : {}, cell(family.title, ""),
      cell(number(scope.drivers)), cell(number(tally.rooted)),
      cell(number(scope.functions)), cell(number(tally.critical)),
      element("td", { class: "n" }, percent(tally.percent), bar(tally.percent)),
      cell(percent(tally.rooted_percent)), cell(percent(tally.mean)),
      cell(percent(tally.rooted_mean)), cell(number(scope.lines)),
      cell(percent(tally.lines_percent)), cell(said));
  });
  $("families").replaceChildren(element("tr", {},
    ...heads.map((head, index) => element("th", { class: index ? "n" : "" }, head))), ...rows);
}

const COLUMNS = [
  ["name", "driver"], ["directory", "folder"], ["functions", "functions"], ["critical", "critical"],
  ["percent", "share"],
  ["lines", "lines"], ["criticalLines", "critical lines"], ["linesPercent", "share of lines"],
  ["libraries", "library modules"], ["unread", "unread files"],
];
function flat(row, index) {
  const counts = $("unit").value === "driver" && row.together ? row.together : row.alone;
  const critical = counts.critical[index], criticalLines = counts.critical_lines[index];
  return { row, name: row.name, directory: row.directory, functions: counts.functions, critical,
    percent: share(critical, counts.functions), lines: counts.lines,
    criticalLines, linesPercent: share(criticalLines, counts.lines),
    libraries: (row.libraries || []).join(" "), unread: (row.failures || []).length };
}
function drivers() {
  const index = ruleIndex(), text = $("text").value.trim().toLowerCase(),
    family = $("family").value;
  const rows = study.drivers.map((row) => flat(row, index)).filter((line) =>
    (!text || line.name.toLowerCase().includes(text) || line.directory.includes(text)) &&
      (!family || line.row.families.includes(family)) &&
    (!$("rooted").checked || line.critical) && ($("libraries").checked || !line.row.library));
  const sign = order.down ? -1 : 1;
  rows.sort((a, b) =>
    sign * (a[order.key] > b[order.key] ? 1 : a[order.key] < b[order.key] ? -1 : 0) ||
    (a.name < b.name ? -1 : 1));
  const head = element("tr", {}, ...COLUMNS.map(([key, title]) => {
    const mark = key === order.key ? (order.down ? " ▾" : " ▴") : "";
    const made = element("th", { "data-key": key, tabindex: 0 }, title + mark);
    made.onclick = () => {
      order = { key, down: key === order.key ? !order.down : !["name", "directory"].includes(key) };
      drivers();
    };
    made.onkeydown = (event) => { if (event.key === "Enter") made.onclick(); };
    return made;
  }));
  const lines = rows.map((line) => {
    const made = element("tr", { tabindex: 0, class: open && open.row === line.row ? "open" : "" },
      cell(line.name, ""), cell(line.directory, "mute"), cell(number(line.functions)),
      cell(number(line.critical)),
      element("td", { class: "n" }, percent(line.percent), bar(line.percent)),
      cell(number(line.lines)), cell(number(line.criticalLines)), cell(percent(line.linesPercent)),
      element("td", { class: "mute long", title: line.libraries }, line.libraries),
      cell(line.unread ? String(line.unread) : ""));
    made.onclick = () => { location.hash = path(line.row); };
    made.onkeydown = (event) => { if (event.key === "Enter") made.onclick(); };
    return made;
  });
  $("drivers").replaceChildren(head, ...lines);
  $("shown").textContent = `${rows.length} of ${study.drivers.length} shown; click one to open it`;
}

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// The shortest way from a root to each function, under the rule that is chosen: function ->
// [caller, line, kinds] or the root's reason.
function chains(detail) {
  const kinds = FOLLOWED[$("calls").value], reach = REACHES.indexOf($("reach").value);
  const found = new Map();
  for (const [fn, finder, narrowest, template, where] of detail.roots)
    if (finder === $("roots").value && REACHES.indexOf(narrowest) <= reach && !found.has(fn))
      found.set(fn, { root: `${template}: ${where}` });
  const callees = new Map();
  for (const call of detail.calls)
    if (call[2] & kinds) callees.get(call[0])?.push(call) ?? callees.set(call[0], [call]);
  // A Map's iterator sees what is added while it runs: this is the breadth-first search.
  for (const fn of found.keys())
    for (const [caller, callee, kind, line] of callees.get(fn) || [])
      if (!found.has(callee)) found.set(callee, { caller, line, kind });
  return found;
}
function chain(detail, found, fn) {
  const steps = [];
  for (let at = found.get(fn), to = fn; at; to = at.caller, at = found.get(at.caller)) {
    if (at.root) return [`${detail.functions[to][0]} (${at.root})`, ...steps.reverse()].join(" → ");
    steps.push(`${detail.functions[to][0]}${at.kind & 1 ? "" : " (through a pointer)"}`);
  }
  return "";
}

function driver() {
  const section = $("driver");
  section.hidden = !open;
  if (!open) return;
  const { row, detail } = open, bit = ruleIndex(), found = chains(detail),
    text = (section.querySelector("input")?.value || "").toLowerCase();
  const lines = detail.functions.map((listed, fn) =>
    ({ listed, fn, critical: Boolean((listed[4] >> bit) & 1) })).filter((line) =>
    line.listed[3] && (!text || line.listed[0].toLowerCase().includes(text)));
  lines.sort((a, b) => b.critical - a.critical || a.listed[1] - b.listed[1] ||
    a.listed[2] - b.listed[2]);
  const rows = lines.map(({ listed: [name, file, line, length, , module], fn, critical }) =>
    element("tr", {}, cell(name, critical ? "hot" : ""),
    cell(critical ? (found.get(fn)?.root ? "root" : "critical") : "", ""),
    cell(String(length)), cell(`${detail.files[file]}:${line}`, "mute"),
    cell(module ? detail.modules[module] : "", "mute"),
    cell(critical ? chain(detail, found, fn) : "", "chain")));
  const counts = row.together || row.alone;
  const table = element("table", {},
    element("tr", {}, ...["function", "", "lines", "where", "library", "why"].map((head) =>
      element("th", {}, head))), ...rows);
  const trouble = [...(row.failures || []).map((failure) => `${failure.source}: ${failure.reason}`),
    ...Object.entries(row.skipped || {}).map(([name, why]) => `${name}: ${why}`)];
  const close = element("button", {}, "close");
  close.onclick = () => { location.hash = ""; };
  const search = section.querySelector("input") ||
    element("input", { type: "search", placeholder: "function", "aria-label": "function" });
  search.oninput = driver;
  const focused = document.activeElement === search;
  section.replaceChildren(
    element("h3", {}, row.name, " ", close),
    element("p", {},
      `${row.directory}: ${number(row.alone.functions)} functions, ` +
      `${number(row.alone.critical[bit])} critical, ` +
      `${number(row.alone.critical_lines[bit])} of ${number(row.alone.lines)} lines.` +
      (row.together ? ` With ${row.libraries.join(", ")}: ${number(counts.functions)} functions, ` +
        `${number(counts.critical[bit])} critical; of the libraries, only functions ` +
        `that some rule calls critical are listed.` : "")),
    ...trouble.map((line) => element("p", { class: "hot" }, "not read: " + line)),
    element("p", {}, search), element("div", { class: "wide tall" }, table));
  if (focused) search.focus();
}

async function route() {
  const name = decodeURIComponent(location.hash.slice(1));
  const row = study.drivers.find((one) => path(one) === name) ||
    study.drivers.find((one) => one.name === name);
  open = row && packed[path(row)] ? { row, detail: await unpack(packed[path(row)]) } : null;
  drivers();
  driver();
  if (open) $("driver").scrollIntoView({ block: "nearest" });
}
function all() { families(); drivers(); driver(); }
for (const id of [...choices, "unit"]) $(id).onchange = all;
for (const id of ["family", "rooted", "libraries"]) $(id).onchange = drivers;
$("text").oninput = drivers;
window.onhashchange = route;
all();
route();
