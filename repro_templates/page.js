const main = document.querySelector("main"), lost = document.querySelector("#lost");
const news = new EventSource("news");
let asked = false, again = false;

async function refresh() {
  if (asked) { again = true; return; }
  asked = true;
  try {
    const answer = await fetch("part");
    if (answer.ok) {
      main.innerHTML = await answer.text();
      document.title = main.querySelector("h1").textContent;
    }
    lost.hidden = answer.ok;
  } catch { lost.hidden = false; }
  asked = false;
  if (again) { again = false; refresh(); }
}

news.onmessage = refresh;
news.onerror = () => { lost.hidden = false; };
