# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md in Python: which stream length costs how much, and whether mixed lengths beat one.

A notebook as a script: cells begin at "# %%". examples/tutorial.ipynb has the same cells and is made of it:

  tools/python --with jupytext -m jupytext --to ipynb examples/tutorial.py

Run whole, it leaves the figures in FOLDER:

  tools/python --with tqdm examples/tutorial.py

TUTORIAL_FOLDER (build/tutorial-python) is where files go, TUTORIAL_WINDOWS (16) how many windows of the text are measured.
"""

# %% [markdown]
# # An ablation and a front of mixed lengths
# Everything runs on the demo model, on a CPU, in a checkout of the repository (`pip install .` there first). Numbers are those
# of `docs/tutorial.md`, since the commands and these functions have the same bits.

# %%
import json
import os
from pathlib import Path

import stoch

os.chdir(next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "docs/plots/front.json").exists()))
FOLDER = Path(os.environ.get("TUTORIAL_FOLDER", "build/tutorial-python"))
WINDOWS = int(os.environ.get("TUTORIAL_WINDOWS", "16"))
FULL = WINDOWS >= 16
FOLDER.mkdir(parents=True, exist_ok=True)

# %% [markdown]
# ## First steps
# A model, a text, and the same text with streams of 32 cycles instead of 128 in one operator. Settings are a text, or a dict.

# %%
with stoch.load("demo", device="cpu") as model:
    story = model.generate("Once upon a time", max_new_tokens=24)
    print(story.text)
    print(model.logits("Once upon a time").shape)
model

# %%
with stoch.load("demo", device="cpu", sc={"preset": "halved", "down_proj": {"stoc_len": 32}}) as model:
    print(model.generate("Once upon a time", max_new_tokens=24).text)
story

# %% [markdown]
# ## Two texts
# One to calibrate on, one to measure on. The demo model writes them itself, exactly, sampled at temperature 1.


# %%
def write_text(path: Path, seeds: range) -> Path:
    with stoch.load("demo", device="cpu", precision="fp32") as model:
        options = {"max_tokens": 400, "ignore_eos": True, "temperature": 1}
        texts = [model.generate("Once upon a time", seed=seed, **options).text for seed in seeds]
    path.write_text("".join(text + "\n" for text in texts))
    return path


calibration = write_text(FOLDER / "calibration.txt", range(1, 7 if FULL else 2))
held_out = write_text(FOLDER / "held-out.txt", range(1001, 1015 if FULL else 1002))

# %% [markdown]
# ## Stream length, halving, scrambling
# A plan is a grid of settings. A row of the result is a flat dict: `pandas.DataFrame(ablation)` is a table.


# %%
def plan_of(name: str) -> dict:
    plan = json.loads(Path(f"docs/plots/{name}.json").read_text().replace("build/tutorial/", f"{FOLDER}/"))
    return plan | {"max_windows": WINDOWS}


ablation = stoch.sweep(plan_of("ablation"), output=FOLDER / "ablation.jsonl", resume=True, device="cpu",
                       plot="x=stoc_len,y=ppl,by=halve+scramble,log=x+y")
ablation

# %%
for row in ablation:
    print(f"{row['config']:55} perplexity {row['metrics.ppl']:8.2f}")

# %% [markdown]
# ## A front of mixed lengths
# A length for every row of every product, so that the sum of relative errors is least under an average.

# %%
for length in (32, 40, 48, 56, 64, 80):
    stoch.calibrate("mp", "demo", file=calibration, output=FOLDER / f"mixed-{length}.json", ctx=256,
                    max_windows=min(8, WINDOWS), levels=[128, 96, 64, 48, 32, 24], budget=length / 128, device="cpu")

# %%
front = stoch.sweep(plan_of("front"), output=FOLDER / "front.jsonl", resume=True, device="cpu",
                    plot="x=mac_avg_stoc_len,y=ppl,by=series")
front

# %% [markdown]
# ## Where the errors are
# The error of every operator of every layer, and over the stream length.

# %%
errors = stoch.profile("demo", file=held_out, sc=["stoc_len=128", "stoc_len=64", "stoc_len=32"], ctx=256,
                       max_windows=min(2, WINDOWS), plot=FOLDER / "profile", device="cpu")
errors

# %%
worst = max(errors, key=lambda row: row["mse"])
print(f"{len(errors)} rows; the worst: {worst['op']} of layer {worst['layer']} at {worst['config']}")
