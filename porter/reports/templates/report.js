(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = { responsive: true, displayModeBar: false };

  function ink() {
    const style = getComputedStyle(document.documentElement);
    return { "font.color": style.getPropertyValue("--quiet").trim() };
  }

  function pin(place, event) {
    const point = event.points[0];
    const note = place.closest("section").querySelector(".pinned");
    const said = typeof point.text === "string" ? point.text : "";
    const token = point.customdata !== undefined;
    note.innerHTML = token
      ? "token " + point.x + " <b>" + said + "</b> · layer " + point.y + " · ρ_tok " + point.customdata.toPrecision(3)
      : said.split("<br>").join(" · ");
  }

  function draw(place) {
    if (place.classList.contains("js-plotly-plot")) {
      Plotly.Plots.resize(place);
      return;
    }
    const figure = figures[place.id];
    Plotly.newPlot(place, figure.data, figure.layout, config).then(function () {
      Plotly.relayout(place, ink());
      place.on("plotly_click", function (event) { pin(place, event); });
    });
  }

  document.querySelectorAll(".figure:not(.hidden)").forEach(draw);

  document.querySelectorAll(".tabs button").forEach(function (button) {
    button.addEventListener("click", function () {
      const section = button.closest("section");
      section.querySelectorAll(".tabs button").forEach(function (other) {
        other.setAttribute("aria-selected", String(other === button));
      });
      section.querySelectorAll(".figure").forEach(function (place) {
        place.classList.toggle("hidden", place.id !== button.dataset.shows);
      });
      draw(document.getElementById(button.dataset.shows));
    });
  });

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () {
    document.querySelectorAll(".js-plotly-plot").forEach(function (place) { Plotly.relayout(place, ink()); });
  });
})();
