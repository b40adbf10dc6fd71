// What a page is like for who reads and uses it, measured. Chromium evaluates this
// in the page; its value is read into type audit. What is wrong is looked for only
// if asked: in between, only where the focus is.
((everything) => {
  const focusable = [...document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]")]
    .filter((e) => e.checkVisibility() && !e.disabled);
  const label = (e) => `${e.localName} “${(e.innerText || e.id || e.name || "").trim().slice(0, 40)}”`;

  // rgba reads any CSS colour: components 0..255, alpha 0..1.
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = color;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  // ground is the opaque colour behind an element's content.
  const ground = (e) => {
    if (!e) return rgba("Canvas");
    const own = rgba(getComputedStyle(e).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(e.parentElement));
  };
  const opacity = (e) => (e ? getComputedStyle(e).opacity * opacity(e.parentElement) : 1);
  // contrast is that of WCAG 2.2.
  const luminance = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (x, y) => {
    const [hi, lo] = [luminance(x), luminance(y)].sort((a, b) => b - a);
    return (hi + 0.05) / (lo + 0.05);
  };
  const legible = (e, color, behind) => {
    const c = rgba(color);
    return contrast(over([c[0], c[1], c[2], c[3] * opacity(e)], behind), behind);
  };

  const problems = [];
  const complain = (e, what) => problems.push(`${label(e)} ${what}`);

  if (everything) readAll();

  function readAll() {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const e = texts.currentNode.parentElement;
      if (!texts.currentNode.data.trim() || !e.checkVisibility() || ["style", "option"].includes(e.localName)) continue;
      const c = legible(e, getComputedStyle(e).color, ground(e));
      if (c < 4.5) complain(e, `is faint: contrast ${c.toFixed(2)}, not 4.5`);
      if (parseFloat(getComputedStyle(e).fontSize) < 12) complain(e, `is small print: ${getComputedStyle(e).fontSize}`);
    }
    for (const e of document.querySelectorAll("*")) {
      if (getComputedStyle(e).backgroundImage !== "none") complain(e, "has a picture behind it, so its contrast is unknown");
    }
    for (const e of document.querySelectorAll("input:not([type=hidden], [type=checkbox]), textarea, select")) {
      const behind = ground(e), outside = ground(e.parentElement), s = getComputedStyle(e);
      for (const [what, color] of [["text", s.color], ["placeholder", getComputedStyle(e, "::placeholder").color]]) {
        const c = legible(e, color, behind);
        if (c < 4.5) complain(e, `has faint ${what}: contrast ${c.toFixed(2)}, not 4.5`);
      }
      const edge = Math.max(contrast(behind, outside), parseFloat(s.borderBottomWidth) ? legible(e, s.borderBottomColor, outside) : 1);
      if (edge < 3) complain(e, `has a faint edge: contrast ${edge.toFixed(2)}, not 3`);
    }

    let last = null;
    for (const e of focusable) {
      // What a finger can hit: the control, or its label.
      const targets = [e, ...(e.labels ?? [])].map((x) => x.getBoundingClientRect());
      if (!targets.some((r) => r.width >= 24 && r.height >= 24)) {
        complain(e, `is too small to hit: ${targets.map((r) => `${Math.round(r.width)}x${Math.round(r.height)}`)}`);
      }
      const r = e.getBoundingClientRect();
      if (last && (r.bottom <= last.top + 1 || (r.top < last.bottom - 1 && r.right <= last.left + 1))) {
        complain(e, "comes later by Tab than it stands on the page");
      }
      last = r;
    }

    const frame = document.querySelector("main")?.getBoundingClientRect();
    for (const e of document.querySelectorAll("main *")) {
      const r = e.getBoundingClientRect();
      if (e.checkVisibility() && (r.right > frame.right + 1 || r.left < frame.left - 1)) complain(e, "sticks out of the page's main part");
    }

  }

  // How the focused element shows it.
  const focused = document.activeElement;
  let focus = "";
  if (focusable.includes(focused)) {
    const s = getComputedStyle(focused), width = parseFloat(s.outlineWidth);
    const c = legible(focused, s.outlineColor, ground(focused.parentElement));
    if (s.outlineStyle === "none" || width < 2) focus = `${label(focused)} does not show the focus`;
    else if (c < 3) focus = `${label(focused)} shows the focus faintly: contrast ${c.toFixed(2)}, not 3`;
  }

  const root = document.documentElement;
  const reach = (e) => Math.max(e.getBoundingClientRect().right, e.getBoundingClientRect().left + e.scrollWidth);
  const wide = root.scrollWidth <= root.clientWidth ? [] : [...document.body.querySelectorAll("*")].filter((e) => reach(e) > root.clientWidth);
  return {
    title: document.title,
    lang: root.lang,
    width: root.clientWidth,
    scrollWidth: root.scrollWidth,
    scripts: document.scripts.length,
    wide: wide.filter((e) => !wide.some((inner) => inner !== e && e.contains(inner))).map(label), // the innermost
    problems, focus,
    focusables: focusable.length,
    focused: focusable.indexOf(focused),
  };
})
