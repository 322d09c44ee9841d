// SPDX-License-Identifier: Apache-2.0
// Live updates: the page's own address as a stream of server-sent events. Only a visible page holds a connection,
// since a browser has six of them for all its pages together.
(function () {
  "use strict";
  let source = null;
  let held = null;
  let retry = 0;
  const RETRY_MS = 3000;

  const live = () => document.querySelector("#live[data-live]");
  const state = (text) => {
    const place = document.getElementById("live-state");
    if (place) place.textContent = text;
  };

  // A part waits while its replacement would take away a selection or the focus.
  function isInUse(place) {
    const selection = document.getSelection();
    if (selection && !selection.isCollapsed && place.contains(selection.anchorNode)) return true;
    const focused = document.activeElement;
    return place.contains(focused) && focused.matches("a, button, input, select, textarea, summary");
  }

  function show() {
    const place = live();
    if (held === null || !place || isInUse(place)) return;
    const scrolled = [...place.querySelectorAll(".wide")].map((one) => one.scrollLeft);
    window.htmx.swap(place, held, { swapStyle: "innerHTML", swapDelay: 0, settleDelay: 0 });
    place.querySelectorAll(".wide").forEach((one, index) => { one.scrollLeft = scrolled[index] || 0; });
    held = null;
  }

  function tick() {
    show();
    const place = document.getElementById("read-at");
    const now = new Date();
    if (place) place.textContent = now.toISOString().slice(0, 19).replace("T", " ") + " UTC";
    state(", updated while it is open");
  }

  function connect() {
    disconnect();
    if (!live() || document.hidden) return;
    source = new EventSource(window.location.pathname + window.location.search);
    source.addEventListener("part", (event) => { held = event.data; show(); });
    source.addEventListener("alive", tick);
    source.addEventListener("refused", (event) => {
      disconnect();
      state("; updates have ended: " + event.data + " Load the page again");
    });
    source.onerror = () => {
      state("; updates have stopped, trying again");
      // A browser repeats a lost connection itself, but not one that got another answer, such as 503 of an Ingress.
      if (source && source.readyState === EventSource.CLOSED) retry = setTimeout(connect, RETRY_MS * (1 + Math.random()));
    };
  }

  function disconnect() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
    held = null;
  }

  document.addEventListener("visibilitychange", connect);
  document.addEventListener("htmx:pushedIntoHistory", connect);
  document.addEventListener("htmx:historyRestore", connect);
  window.addEventListener("pagehide", disconnect);
  window.addEventListener("pageshow", connect);
})();
