"use strict";
// Makes the page's legends buttons, its plots readable point by point, and shows one of the two tables at a time.
// Without this script everything is still there: both tables, all series, and a title on each mark.
(() => {
  const points = JSON.parse(document.getElementById("points").textContent);
  const near = 0.6; // Points of different series are at the same place if they are closer than this.

  for (const figure of document.querySelectorAll("figure[data-figure]")) {
    const plot = figure.querySelector(".plot");
    const tip = figure.querySelector(".tip");
    const cursor = plot.querySelector(".cursor");
    const series = points[figure.dataset.figure].map((each, index) => ({ ...each, index, shown: true }));
    const box = plot.viewBox.baseVal;
    let place = null; // Where the keyboard is, as an index into places().

    for (const title of plot.querySelectorAll(".mark title, .bar title")) title.remove(); // The tip shows it at once.

    // Points that can be pointed at: where each is, its span for bars and steps, its note.
    const candidates = () =>
      series.filter((each) => each.shown).flatMap((each) =>
        each.x.map((x, i) => {
          const left = each.left ? each.left[i] : x;
          return { x, left, middle: (x + left) / 2, y: each.y[i], place: each.places[i], note: each.notes[i], wide: Boolean(each.left) };
        }));

    const places = () => {
      const sorted = candidates().map((each) => each.middle).sort((a, b) => a - b);
      return sorted.filter((x, i) => i === 0 || x - sorted[i - 1] > near);
    };

    const hide = () => {
      tip.hidden = true;
      cursor.replaceChildren();
    };

    const shape = (name, attributes) => {
      const made = document.createElementNS(plot.namespaceURI, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };

    const show = (chosen) => {
      const at = candidates().filter((each) => Math.abs(each.middle - chosen.middle) <= near).sort((a, b) => a.y - b.y);
      cursor.replaceChildren(
        shape("line", { x1: chosen.middle, x2: chosen.middle, y1: 0, y2: box.height }),
        ...at.map((each) => shape("circle", { cx: each.middle, cy: each.y, r: 6 })));
      tip.replaceChildren(...[chosen.place, ...at.map((each) => each.note)].map((text, i) => {
        const line = document.createElement(i === 0 ? "strong" : "div");
        line.textContent = text;
        return line;
      }));
      tip.hidden = false;
      const scale = plot.clientWidth / box.width;
      const x = chosen.middle * scale;
      const y = chosen.y * scale;
      const left = x + 14 + tip.offsetWidth > plot.clientWidth ? Math.max(0, x - 14 - tip.offsetWidth) : x + 14;
      const top = Math.min(Math.max(0, y - tip.offsetHeight / 2), Math.max(0, plot.clientHeight - tip.offsetHeight));
      tip.style.left = `${left}px`;
      tip.style.top = `${top}px`;
    };

    plot.addEventListener("pointermove", (event) => {
      const bounds = plot.getBoundingClientRect();
      const x = ((event.clientX - bounds.left) / bounds.width) * box.width;
      const y = ((event.clientY - bounds.top) / bounds.height) * box.height;
      const distance = (each) => {
        const across = each.wide ? Math.max(each.left - x, x - each.x, 0) : each.x - x;
        return each.wide ? Math.abs(across) + Math.abs(each.y - y) / 1000 : Math.hypot(across, each.y - y);
      };
      let best = null;
      for (const each of candidates()) {
        if (best === null || distance(each) < distance(best)) best = each;
      }
      if (best === null || Math.abs(best.middle - x) > Math.max(60, Math.abs(best.x - best.left))) hide();
      else show(best);
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const all = places();
      if (step === undefined || all.length === 0) return undefined;
      event.preventDefault();
      place = place === null ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(place + step, 0), all.length - 1);
      return show(candidates().find((each) => Math.abs(each.middle - all[place]) <= near));
    });

    for (const entry of figure.querySelectorAll(".legend li")) {
      const index = Number(entry.dataset.series);
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(...entry.childNodes);
      entry.append(button);
      button.addEventListener("click", () => {
        const own = series[index];
        own.shown = !own.shown;
        button.setAttribute("aria-pressed", String(own.shown));
        plot.querySelector(`.series[data-series="${index}"]`).classList.toggle("off", !own.shown);
        place = null;
        hide();
      });
    }
  }

  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true; // Paper has nothing to click.
  });

  const rates = [...document.querySelectorAll(".rate")];
  if (rates.length > 1) {
    const choice = document.createElement("div");
    choice.className = "choice";
    choice.setAttribute("role", "group");
    choice.setAttribute("aria-label", "Rate shown");
    const choose = (chosen) => {
      rates.forEach((rate, i) => { rate.hidden = rate !== chosen; choice.children[i].setAttribute("aria-pressed", String(rate === chosen)); });
    };
    for (const rate of rates) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = rate.querySelector("caption").textContent;
      button.addEventListener("click", () => choose(rate));
      choice.append(button);
    }
    rates[0].before(choice);
    choose(rates[0]);
  }
})();
