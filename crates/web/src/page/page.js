"use strict";
// Keeps the page current: when something changes, and every ten seconds, the page is fetched again and its content put in place.
// Without it the page works and stays as it was loaded.
(() => {
  const main = document.getElementById("main"), state = document.getElementById("state");
  if (!state) return;
  let due = 0, busy = false;
  // The latest output of a job is what people look for: it is followed, unless somebody scrolls up.
  const atEnd = (one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 4;
  for (const one of main.querySelectorAll("pre.output")) one.scrollTop = one.scrollHeight;
  const inUse = () => {
    const at = document.activeElement, marked = String(getSelection());
    return marked !== "" || (at && main.contains(at) && /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName));
  };
  async function renew() {
    if (busy || document.hidden || inUse()) return;
    busy = true;
    try {
      const answer = await fetch(location.href, { headers: { accept: "text/html" } });
      if (answer.status === 401) return location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html"), fresh = page.getElementById("main");
      if (fresh && !inUse()) put(page, fresh);
      document.body.classList.remove("stale");
      state.textContent = "";
    } catch {
      document.body.classList.add("stale");
      state.textContent = "The server is unreachable; the page shows what was last known.";
    } finally {
      busy = false;
    }
  }
  function put(page, fresh) {
    const open = [...main.querySelectorAll("details")].map((one) => one.open);
    const at = document.activeElement, place = main.contains(at) ? [...main.querySelectorAll("a, button, [tabindex]")].indexOf(at) : -1;
    const scrolled = [...main.querySelectorAll(".scroll, pre")].map((one) => [one.scrollLeft, one.scrollTop, atEnd(one)]);
    main.replaceChildren(...fresh.childNodes);
    main.querySelectorAll("details").forEach((one, number) => { one.open = open[number] === true; });
    main.querySelectorAll(".scroll, pre").forEach((one, number) => {
      if (scrolled[number]) [one.scrollLeft, one.scrollTop] = scrolled[number];
      if (scrolled[number]?.[2] && one.matches("pre.output")) one.scrollTop = one.scrollHeight;
    });
    if (place >= 0) main.querySelectorAll("a, button, [tabindex]")[place]?.focus({ preventScroll: true });
    for (const svg of main.querySelectorAll(".plot > svg[data-unit]")) readable(svg);
    document.querySelector("header nav").replaceWith(page.querySelector("header nav"));
  }
  function soon() {
    if (!due) due = setTimeout(() => { due = 0; renew(); }, 700);
  }
  const events = new EventSource("/live");
  for (const name of ["job", "host", "lost"]) events.addEventListener(name, soon);
  events.addEventListener("open", () => { document.documentElement.dataset.live = "yes"; });
  setInterval(renew, 10000);
})();
