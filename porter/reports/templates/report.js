(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { displayModeBar: false };
  const NARROW = 620; // pixels of a picture, under which its legend goes below it
  const NUMBER = 27, LAYER = 24, WORD = 17; // pixels that a ρ, the number of a layer and an upright word need
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const cursors = new Map(); // place -> what its cursor stands on

  // --- a figure for the room it has

  function fitted(place) {
    const figure = structuredClone(figures[place.id]);
    const width = place.clientWidth;
    figure.layout.width = width;
    const meta = figure.layout.meta || {};
    figure.layout.font.color = getComputedStyle(document.documentElement).getPropertyValue("--quiet").trim();
    if (width < NARROW) { narrow(figure); }
    const room = width - (meta.kind === "nodes" ? 120 : 70) - (width < NARROW ? 20 : 80);
    const places = figure.layout.xaxis && figure.layout.xaxis.categoryarray;
    if (places) { thin(figure.layout.xaxis, places, room / places.length); }
    if (meta.kind === "nodes" && room / places.length < NUMBER) {
      figure.data.forEach(function (trace) {
        if (trace.mode === "text") { trace.text = trace.text.map(function () { return trace.meta; }); }
      });
    }
    if (meta.kind === "tokens") { nameTokens(figure, meta, room); }
    return figure;
  }

  function narrow(figure) {
    const layout = figure.layout;
    layout.margin = Object.assign({}, layout.margin, { r: 12 });
    (layout.annotations || []).forEach(function (note, index) {
      if (note.xanchor === "left") { Object.assign(note, { x: 0.1 + 0.42 * (index % 2), xshift: 0, yshift: note.yref === "y2" ? 8 : 20 }); } // beside the limit, above the lane
    });
    if (layout.legend) { layout.legend.font = { size: 10 }; }
    figure.data.forEach(function (trace) {
      if (!trace.colorbar) { return; }
      const bar = { orientation: "h", x: 0.5, xanchor: "center", y: 0.005, yanchor: "bottom", yref: "container", len: 1, thickness: 9 };
      Object.assign(trace.colorbar, bar);
      if (trace.colorbar.title) { trace.colorbar.title.text = ""; }
      trace.colorbar.ticktext = trace.colorbar.ticktext.map(function (text) { return text.replace(/ (warn|fail)$/, ""); });
      layout.height += 44;
      layout.margin.b = (layout.margin.b || 46) + 44;
    });
  }

  function thin(axis, places, cell) {
    const step = [1, 2, 5, 10, 20, 50].find(function (each) { return each * cell >= LAYER; }) || 100;
    axis.tickvals = places.filter(function (name, index) {
      if (!/^\d+$/.test(name)) { return true; }
      const clear = step === 1 && cell > 32 ? 0 : 38 / cell; // beside "embed" and "final"
      return Number(name) % step === 0 && index >= clear && places.length - 1 - index >= clear;
    });
  }

  function nameTokens(figure, meta, room) {
    const trace = figure.data[0];
    const several = meta.words.length > 1;
    const said = meta.words.some(function (words) { return words.length; });
    trace.text = meta.prompts.map(function (prompt) {
      const words = meta.words[prompt] || [];
      if (!several) { return words; }
      return Array.from({ length: meta.width }, function (_, index) { return (words[index] || "") + "</b> of prompt " + (prompt + 1) + "<b>"; });
    });
    trace.hovertemplate = "token %{x}" + (said || several ? ": <b>%{text}</b>" : "") + "<br>layer %{y}<br>ρ_tok %{customdata:.3g}<extra></extra>";
    const words = meta.words[0] || [];
    if (!several && words.length && words.length * WORD <= room) { Object.assign(figure.layout.xaxis, wordTicks(words, 0, words.length - 1)); }
  }

  function wordTicks(words, first, last) {
    const at = [];
    for (let index = Math.max(0, Math.ceil(first)); index <= Math.min(last, words.length - 1); index += 1) { at.push(index); }
    const names = at.map(function (index) { return words[index].length > 14 ? words[index].slice(0, 13) + "…" : words[index]; });
    return { tickvals: at, ticktext: names, tickangle: -60 };
  }

  // --- drawing

  function draw(place) {
    if (!window.Plotly) { return window.plotlyReady.then(function () { return draw(place); }); }
    if (place.dataset.width && place.dataset.width !== String(place.clientWidth)) { // plotly keeps margins of the old width
      Plotly.purge(place);
      place.classList.remove("js-plotly-plot");
    }
    place.dataset.width = String(place.clientWidth);
    const figure = fitted(place);
    const first = !place.classList.contains("js-plotly-plot");
    place.style.height = figure.layout.height + "px";
    return Plotly.react(place, figure.data, figure.layout, config).then(function () {
      if (first) { listen(place); }
      mark(place);
    });
  }

  function listen(place) {
    if (place.dataset.of) { return; } // elements say themselves what they are
    place.on("plotly_click", function (event) { reach(place, ofPoint(place, event.points[0]), true); });
    place.on("plotly_afterplot", function () { mark(place); });
    place.on("plotly_relayout", function (event) {
      const meta = figures[place.id].layout.meta || {};
      if (meta.kind !== "tokens" || meta.words.length !== 1) { return; }
      if (event["xaxis.autorange"]) { draw(place); }
      if (event["xaxis.range[0]"] === undefined) { return; }
      const first = event["xaxis.range[0]"], last = event["xaxis.range[1]"];
      const fits = (last - first) * WORD <= place.clientWidth - 130;
      Plotly.relayout(place, fits ? { xaxis: Object.assign({}, place.layout.xaxis, wordTicks(meta.words[0], first, last)) }
        : { "xaxis.tickvals": null, "xaxis.ticktext": null, "xaxis.tickangle": 0 });
    });
  }

  // --- the points of a figure: cells of a grid, or points along traces

  function isGrid(place) { return place.data.some(function (trace) { return trace.type === "heatmap"; }); }

  function gridOf(place) {
    const maps = place.data.filter(function (trace) { return trace.type === "heatmap"; });
    const tokens = (figures[place.id].layout.meta || {}).kind === "tokens";
    const last = maps[maps.length - 1];
    const ratios = tokens && place._fullData[0].customdata; // decoded, which place.data is not
    const width = tokens ? ratios[0].length : last.x.length;
    return {
      rows: last.y.length, columns: width, x: function (c) { return tokens ? c : last.x[c]; }, y: function (r) { return last.y[r]; },
      says: function (r, c) {
        if (!tokens) { return maps.map(function (map) { return map.text[r][c]; }).find(Boolean) || ""; }
        const ratio = ratios[r][c];
        if (!(ratio >= 0)) { return ""; }
        const word = last.text[r] && last.text[r][c];
        return "<b>token " + c + (word ? " " + word : "") + "</b><br>layer " + last.y[r] + "<br>ρ_tok " + Number(ratio).toPrecision(3);
      },
    };
  }

  function tracesOf(place) {
    return place._fullData.filter(function (trace) { return trace.type !== "heatmap" && Array.isArray(trace.text) && trace.hoverinfo !== "skip"; });
  }

  function ofPoint(place, point) {
    if (point.data.type === "heatmap") { return { r: point.pointNumber[0], c: point.pointNumber[1] }; }
    return { t: tracesOf(place).findIndex(function (trace) { return trace.index === point.curveNumber; }), p: point.pointNumber };
  }

  function says(place, at) {
    if (isGrid(place)) { return gridOf(place).says(at.r, at.c); }
    const trace = tracesOf(place)[at.t];
    return trace ? trace.text[at.p] || "" : "";
  }

  function start(place) {
    if (!isGrid(place)) { return { t: 0, p: 0 }; }
    const grid = gridOf(place);
    for (let r = 0; r < grid.rows; r += 1) {
      for (let c = 0; c < grid.columns; c += 1) { if (grid.says(r, c)) { return { r: r, c: c }; } }
    }
    return { r: 0, c: 0 };
  }

  // --- the cursor, and what it says

  function mark(place) {
    const at = cursors.get(place);
    let ring = place.querySelector(":scope > .cursor");
    if (!at || !says(place, at)) { if (ring) { ring.remove(); } return; }
    if (!ring) { ring = place.appendChild(document.createElement("div")); ring.className = "cursor"; }
    const box = boxOf(place, at);
    ring.hidden = !(box.x >= 0);
    ring.style.cssText = "left:" + box.x + "px;top:" + box.y + "px;width:" + box.w + "px;height:" + box.h + "px";
  }

  function along(axis, value) { // d2p takes the name of layer 4 for the fourth place
    const at = axis.type === "category" ? axis._categories.indexOf(String(value)) : -1;
    return at < 0 ? axis.d2p(value) : axis.l2p(at);
  }

  function boxOf(place, at) {
    const layout = place._fullLayout;
    if (isGrid(place)) {
      const grid = gridOf(place), x = layout.xaxis, y = layout.yaxis;
      const w = Math.abs(x.l2p(1) - x.l2p(0)), h = Math.abs(y.l2p(1) - y.l2p(0));
      const left = x._offset + along(x, grid.x(at.c)), top = y._offset + along(y, grid.y(at.r));
      const wide = Math.max(w, 6);
      return { x: left - wide / 2, y: top - h / 2, w: wide, h: h };
    }
    const trace = tracesOf(place)[at.t];
    if (trace.type === "bar") { return { x: -1 }; } // it says its name where it stands
    const x = layout[trace.xaxis.replace("x", "xaxis")], y = layout[trace.yaxis.replace("y", "yaxis")];
    return { x: x._offset + along(x, trace.x[at.p]) - 8, y: y._offset + along(y, trace.y[at.p]) - 8, w: 16, h: 16 };
  }

  function tell(place, text) {
    const card = place.closest("section").querySelector(".pinned");
    const lines = text.split("<br>");
    card.innerHTML = lines.map(function (line) { return "<span>" + line + "</span>"; }).join(" ");
    card.dataset.at = lines[0].replace(/<[^>]*>/g, "");
  }

  function reach(place, at, follow) {
    cursors.set(place, at);
    tell(place, says(place, at));
    mark(place);
    if (isGrid(place)) { showElements(place, at); }
    if (follow && !isGrid(place)) {
      const trace = tracesOf(place)[at.t];
      if (Array.isArray(trace.customdata)) { select(trace.customdata[at.p]); }
    }
  }

  function showElements(place, at) { // of the node that is chosen, where the report has them
    const meta = figures[place.id].layout.meta || {};
    const name = /^<b>(.*?)<\/b>/.exec(says(place, at));
    const found = meta.kind === "nodes" && name && [...document.querySelectorAll("[data-of]")].find(function (other) {
      return other.dataset.of === meta.key + " " + name[1];
    });
    if (found) { show(document.querySelector("[data-shows='" + found.id + "']")); }
  }

  function moved(place, at, key) {
    const far = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], PageDown: [0, 10], PageUp: [0, -10],
      Home: [0, -1e9], End: [0, 1e9] }[key];
    if (!isGrid(place)) {
      const traces = tracesOf(place), t = Math.min(Math.max(at.t + far[0], 0), traces.length - 1);
      return { t: t, p: Math.min(Math.max(at.p + far[1], 0), traces[t].text.length - 1) };
    }
    const grid = gridOf(place);
    const leap = Math.abs(far[1]) > 1;
    let r = at.r, c = at.c;
    do { // over cells that hold nothing
      r += far[0];
      c = leap ? Math.min(Math.max(c + far[1], 0), grid.columns - 1) : c + far[1];
      if (r < 0 || c < 0 || r >= grid.rows || c >= grid.columns) { return at; }
      if (Math.abs(far[1]) > 1 && !grid.says(r, c)) { far[1] = far[1] > 0 ? -1 : 1; } // back to one that holds something
    } while (!grid.says(r, c));
    return { r: r, c: c };
  }

  function onKey(event) {
    const place = event.currentTarget;
    if (place.dataset.of) { return; }
    if (event.key === "Escape") { cursors.delete(place); mark(place); return; }
    if (event.key === "Enter" || event.key === " ") { reach(place, cursors.get(place) || start(place), true); event.preventDefault(); return; }
    if (!/^(Arrow|Page|Home|End)/.test(event.key) || event.ctrlKey || event.metaKey || event.altKey) { return; }
    event.preventDefault();
    const at = cursors.get(place);
    reach(place, at ? moved(place, at, event.key) : start(place), false);
  }

  // --- from anywhere to a node

  function select(key) {
    const parts = key.split(" ");
    const name = parts[2], layered = name.match(/^layers\.(\d+)\.(.+)$/);
    const row = layered ? layered[2] : name;
    const maps = Object.keys(figures).filter(function (id) { return (figures[id].layout.meta || {}).kind === "nodes"; });
    const holds = function (id) { return figures[id].data[0].y.includes(row); };
    const id = maps.find(function (each) { return figures[each].layout.meta.key === parts[0] + " " + parts[1] && holds(each); })
      || maps.find(function (each) { return figures[each].layout.meta.key.endsWith(" " + parts[1]) && holds(each); });
    if (!id) { return; }
    const place = document.getElementById(id);
    show(place.closest("section").querySelector("[data-shows='" + id + "']"));
    const grid = gridOf(place);
    for (let c = 0; c < grid.columns; c += 1) {
      const r = figures[id].data[0].y.indexOf(row);
      if (grid.says(r, c).startsWith("<b>" + name + "</b>")) { reach(place, { r: r, c: c }, false); }
    }
    place.closest("section").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth" });
    place.focus({ preventScroll: true });
  }

  function show(button) {
    const section = button.closest("section");
    section.querySelectorAll(".tabs button").forEach(function (other) {
      other.setAttribute("aria-selected", String(other === button));
      other.tabIndex = other === button ? 0 : -1;
    });
    section.querySelectorAll(".figure").forEach(function (place) {
      place.classList.toggle("hidden", place.id !== button.dataset.shows);
    });
    draw(document.getElementById(button.dataset.shows));
  }

  function nextOf(all, current, key) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[key];
    return step ? all[all.indexOf(current) + step] : undefined;
  }

  document.querySelectorAll(".tabs button").forEach(function (button) {
    button.addEventListener("click", function () { show(button); });
    button.addEventListener("keydown", function (event) {
      const next = nextOf([...button.parentElement.children], button, event.key);
      if (next) { event.preventDefault(); next.focus(); show(next); }
    });
  });
  document.querySelectorAll("a.node").forEach(function (link) {
    link.addEventListener("click", function (event) { event.preventDefault(); select(link.dataset.node); });
    link.addEventListener("keydown", function (event) {
      const next = nextOf([...link.closest("table").querySelectorAll("a.node")], link, event.key);
      if (next && /Up|Down/.test(event.key)) { event.preventDefault(); next.focus(); }
    });
  });
  document.querySelectorAll(".figure").forEach(function (place) {
    place.addEventListener("keydown", onKey);
    if (!place.classList.contains("hidden")) { draw(place); }
  });

  let waiting = 0, width = innerWidth;
  function redraw() { document.querySelectorAll(".figure:not(.hidden)").forEach(draw); }
  addEventListener("resize", function () {
    if (innerWidth === width) { return; }
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
