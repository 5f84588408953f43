// A page that lies about for long says so: the age of each report is counted when it is read.
const limit = Number(document.body.dataset.days) * 86400000;
for (const place of document.querySelectorAll("[data-made]")) {
  const age = Date.now() - Date.parse(place.dataset.made);
  if (age > limit) {
    place.hidden = false;
    place.textContent = `Measured ${Math.floor(age / 86400000)} days ago: older than ` +
      `${document.body.dataset.days} days. Measure it again.`;
  }
}
