window.plotlyReady = (async function () {
  "use strict";
  const packed = Uint8Array.from(atob("$packed"), function (letter) { return letter.charCodeAt(0); });
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
})();
window.plotlyReady.catch(function () { // browsers of before 2023
  document.querySelectorAll(".figure").forEach(function (place) { place.textContent = "This browser is too old to unpack the pictures."; });
});
