"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = $("#tip");

  // theme: the system's unless chosen
  $("#theme").addEventListener("change", (event) => {
    if (event.target.value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = event.target.value;
  });

  // what a mark says: on hover and on focus, the words of its label
  const show = (mark) => {
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - tip.offsetWidth / 2), innerWidth - tip.offsetWidth - 8);
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : at.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  const mark = (target) => (target instanceof Element ? target.closest(".chart .pt") : null);
  document.addEventListener("pointerover", (event) => { const at = mark(event.target); if (at) show(at); });
  document.addEventListener("pointerout", (event) => { if (mark(event.target)) hide(); });
  document.addEventListener("focusin", (event) => { const at = mark(event.target); if (at) show(at); });
  document.addEventListener("focusout", (event) => { if (mark(event.target)) hide(); });
  addEventListener("scroll", hide, { passive: true });

  // one tab stop a chart; the arrow keys go from mark to mark
  const arm = (root) => {
    for (const chart of all(".chart", root)) {
      const first = $(".pt", chart);
      if (first && !$('.pt[tabindex="0"]', chart)) first.setAttribute("tabindex", "0");
    }
  };
  document.addEventListener("keydown", (event) => {
    const at = mark(event.target);
    if (event.key === "Escape") hide();
    if (!at) return;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const marks = all(".pt", at.closest(".chart"));
    let next = null;
    if (step) next = marks[(marks.indexOf(at) + step + marks.length) % marks.length];
    if (event.key === "Home") next = marks[0];
    if (event.key === "End") next = marks[marks.length - 1];
    if (!next) return;
    event.preventDefault();
    at.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  });

  // one level at a time
  const filter = () => {
    const level = $("#level");
    if (!level) return;
    for (const part of all("[data-level]")) part.hidden = level.value !== "" && part.dataset.level !== level.value;
    for (const panels of all(".panels")) panels.classList.toggle("one", level.value !== "");
  };
  document.addEventListener("change", (event) => { if (event.target.id === "level") filter(); });
  document.addEventListener("submit", (event) => event.preventDefault());

  // a link into the page opens what is folded around its end and moves the focus there
  const reveal = () => {
    const end = location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null;
    if (!end) return;
    for (let fold = end.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    for (const fold of all("details", end)) fold.open = true;
    if (end.hasAttribute("tabindex")) end.focus();
    end.scrollIntoView();
  };
  addEventListener("hashchange", reveal);

  // paper has no folds
  addEventListener("beforeprint", () => { for (const fold of all("details")) fold.open = true; });

  document.addEventListener("click", async (event) => {
    if (event.target.id === "copy") {
      const said = $("#copied");
      try {
        await navigator.clipboard.writeText(event.target.dataset.command);
        said.textContent = "Copied.";
      } catch (refused) {
        const range = document.createRange();
        range.selectNodeContents($(".command"));
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        said.textContent = "Selected: copy it with the keyboard.";
      }
    }
    if (event.target.id === "save") {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([$("#report-data").textContent], { type: "application/json" }));
      link.download = event.target.dataset.name;
      link.click();
      URL.revokeObjectURL(link.href);
    }
  });

  // a log is read from its end
  for (const log of all(".failure pre")) log.scrollTop = log.scrollHeight;

  arm(document);
  reveal();

  // following a running campaign (leadline serve): replace what changed, keep what the reader opened
  const following = $("#following");
  if (!following) return;
  let seen = null;
  const refresh = async () => {
    const fresh = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
    const folds = new Map(all("details").map((fold) => [$("summary", fold).textContent, fold.open]));
    const chosen = $("#level") ? $("#level").value : "";
    const main = $("#main");
    for (const section of all("section", fresh)) {
      const old = document.getElementById(section.id);
      if (old && old.innerHTML === section.innerHTML) continue;
      const made = document.importNode(section, true);
      if (old) old.replaceWith(made);
      else {
        const before = all("section", fresh).slice(0, all("section", fresh).indexOf(section)).reverse().map((other) => document.getElementById(other.id)).find(Boolean);
        if (before) before.after(made); else main.append(made);
      }
    }
    for (const old of all("#main > section")) if (!fresh.getElementById(old.id)) old.remove();
    for (const fold of all("details")) if (folds.has($("summary", fold).textContent)) fold.open = folds.get($("summary", fold).textContent);
    if ($("#level") && chosen) { $("#level").value = chosen; filter(); }
    arm(document);
  };
  const follow = async () => {
    try {
      const now = await (await fetch("/progress.json")).json();
      if (seen !== null && now.events !== seen) await refresh();
      seen = now.events;
      if (following.textContent !== now.line) following.textContent = now.line;
    } catch (gone) {
      following.textContent = "The server that sent this page is gone; what stands here is the last that was seen.";
    }
    setTimeout(follow, 1000);
  };
  follow();
})();
