"""Drives a headless Chromium over its debugging pipe: loads pages, acts on them, and reports what it saw as JSON.

Arguments: the program, an empty profile, a folder for pictures, and a plan as JSON: {"login": URL, "pages": [[name, url], ...],
"act": url of the page of a job, which may be missing}.
"""

import base64
import json
import os
import subprocess
import sys
import time

program, profile, pictures, plan = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
to_browser, from_us = os.pipe()
to_us, from_browser = os.pipe()


def place():
    os.dup2(to_browser, 103)
    os.dup2(from_browser, 104)
    os.dup2(103, 3)
    os.dup2(104, 4)


arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--user-data-dir=" + profile, "--remote-debugging-pipe", "about:blank"]
browser = subprocess.Popen([program, *arguments], preexec_fn=place, close_fds=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.close(to_browser)
os.close(from_browser)
buffer, number, events = b"", 0, []


def receive():
    global buffer
    while b"\0" not in buffer:
        part = os.read(to_us, 1 << 20)
        if not part:
            raise SystemExit("the browser has ended")
        buffer += part
    message, buffer = buffer.split(b"\0", 1)
    return json.loads(message)


def call(method, session=None, **parameters):
    global number
    number += 1
    message = {"id": number, "method": method, "params": parameters}
    if session:
        message["sessionId"] = session
    os.write(from_us, json.dumps(message).encode() + b"\0")
    while True:
        answer = receive()
        if answer.get("id") == number:
            if "error" in answer:
                raise SystemExit(f"{method}: {answer['error']}")
            return answer["result"]
        events.append(answer)


seen = {"requests": [], "complaints": [], "pages": {}}
target = call("Target.createTarget", url="about:blank")["targetId"]
page = call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
for domain in ["Page", "Network", "Runtime", "Log"]:
    call(domain + ".enable", page)


def evaluate(text):
    result = call("Runtime.evaluate", page, expression=text, awaitPromise=True, returnByValue=True)
    return result["result"].get("value")


def wait(condition, what):
    for _ in range(300):
        if evaluate(condition):
            return
        time.sleep(0.1)
    raise SystemExit("in vain: " + what + "; the page says " + str(evaluate("document.body.innerText")))


def load(url):
    call("Page.navigate", page, url=url)
    wait("document.readyState === 'complete' && location.href !== 'about:blank'", url)


def picture(name):
    data = call("Page.captureScreenshot", page, format="png", captureBeyondViewport=True)["data"]
    with open(os.path.join(pictures, name + ".png"), "wb") as file:
        file.write(base64.b64decode(data))


WIDE = """(() => {
  const width = document.documentElement.clientWidth;
  const wide = [...document.body.querySelectorAll("*")].find((one) => !one.closest(".scroll, .unseen, .skip, pre")
    && one.getBoundingClientRect().right > width + 1);
  return document.documentElement.scrollWidth > width ? (wide ? wide.outerHTML.slice(0, 200) : "?") : null;
})()"""
UNNAMED = """[...document.querySelectorAll("main svg[role=img], main input:not([type=hidden]), main select, main button, main a")]
  .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length || one.querySelector("title")))
  .map((one) => one.outerHTML.slice(0, 100))"""

load(plan["login"])
seen["logged_in"] = evaluate("document.querySelector('.user span')?.textContent")
for look, width, dark in [("light", 1280, False), ("dark", 1280, True), ("narrow", 390, False), ("wall", 3840, True)]:
    height = 2160 if width > 2000 else 844
    call("Emulation.setDeviceMetricsOverride", page, width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
    feature = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    call("Emulation.setEmulatedMedia", page, features=feature)
    for name, url in plan["pages"]:
        load(url)
        picture(f"{name}-{look}")
        entry = seen["pages"].setdefault(name, {})
        entry[look] = {"title": evaluate("document.querySelector('h1')?.textContent"), "wide": evaluate(WIDE),
                       "unnamed": evaluate(UNNAMED), "charts": evaluate("document.querySelectorAll('figure.chart').length"),
                       "paper": evaluate("getComputedStyle(document.body).backgroundColor"),
                       "across": evaluate("document.querySelector('main').getBoundingClientRect().width / innerWidth"),
                       "letters": evaluate("parseFloat(getComputedStyle(document.body).fontSize)"),
                       "text": evaluate("document.querySelector('main')?.innerText")}

if "act" in plan:
    # A button, by the keyboard: from the beginning of the page to the button, and Enter.
    load(plan["act"])
    wait("document.documentElement.dataset.live === 'yes'", "events")
    for _ in range(60):
        for kind in ["keyDown", "keyUp"]:
            call("Input.dispatchKeyEvent", page, type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        if evaluate("document.activeElement.textContent") == "Kill":
            break
    else:
        raise SystemExit("the button is not reached by the keyboard")
    for kind in ["keyDown", "keyUp"]:
        call("Input.dispatchKeyEvent", page, type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13)
    # Nothing is loaded by hand from here on: the page follows.
    wait("/killed/.test(document.querySelector('main')?.innerText)", "the job is shown as killed")
    seen["killed"] = True
for event in events:
    parameters = event.get("params", {})
    if event.get("method") == "Network.requestWillBeSent":
        seen["requests"].append(parameters["request"]["url"])
    elif event.get("method") == "Runtime.exceptionThrown":
        seen["complaints"].append(json.dumps(parameters["exceptionDetails"])[:500])
    elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
        seen["complaints"].append(json.dumps(parameters["args"])[:500])
    elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] == "error":
        seen["complaints"].append(json.dumps(parameters["entry"])[:500])
print(json.dumps(seen))
call("Browser.close")
browser.wait(20)
