"""The reason codes of what profilers, counters and engines say: the second half of :mod:`perfgate.reasons`."""

from __future__ import annotations

from perfgate.reason_code import Reason

PROFILE_REASONS = (
    # --- traces
    Reason("trace-incomplete", "The trace does not hold steps whole: a range was open when the capture ended, launches "
           "have no kernel in it, or a graph fewer than in its other replays. Where the device's side began late or "
           "ended early, such steps are left out; elsewhere their figures are not known, as each would be too small.",
           "Nothing, if other steps suffice; perfgate kernels --step N shows one that is whole. Otherwise trace fewer "
           "iterations, so that no buffer overflows, with one profiler alone, and end the capture a few steps after "
           "the last one of interest, synchronised; where a profiler loses the kernels of graphs, trace without them."),
    Reason("kernels-overlap", "Kernels begin on a stream before the one before them has ended. With programmatic "
           "dependent launch they do, and end in order: what overlaps counts once, for the kernel that began first. "
           "Kernels that end before one that began earlier have wrong times, and steps with them have no figures.",
           "Nothing where kernels are launched so; a role's time is then what it adds to the step. Otherwise trace "
           "again: the times of such kernels are damaged, or two devices or ranks are in one."),
    Reason("launch-not-traced", "Kernels have no launching call in the trace: they were launched before the capture "
           "began, the calls were not traced, or several calls have one number.",
           "Begin the capture between steps, after a synchronisation, and trace the CUDA interface."),
    Reason("host-slack-lost", "The head's host works longer per step and has less slack before the device waits, or "
           "the device waits already, which it did not with the base. Added host work does not lengthen the step until "
           "the slack is used up; from then on all of it does.",
           "Look for additional work of the host between steps (scheduling, input preparation, sampling). A smaller or "
           "faster model, or a slower CPU, has less slack to lose."),
    Reason("not-recorded", "The trace, or the result of another tool, does not record what a figure is made of, "
           "so it is left out, or what was asked for; or figures of a result contradict each other, so none is shown.",
           "Read what is missing or contradicts the rest; trace or measure again with it."),
    Reason("memory-from-zero", "The profiler records what is allocated and released, not what there was before, so "
           "levels count from the beginning of the capture.",
           "Begin the capture before the engine allocates, or read differences of levels alone."),
    Reason("no-step-ranges", "No range in the trace names a step, and what its kernels repeat does not tell either, so "
           "kernels cannot be assigned to steps.",
           "Trace with perfgate's worker, or with vLLM's profiler set to 'cuda', which opens execute_context_ ranges."),
    Reason("steps-inferred", "No range in the trace names a step. The steps are inferred from what is launched again "
           "and again, so where one begins, and that it is one, is a conclusion and not a record.",
           "Nothing, if what repeats is a step; otherwise trace with ranges (see no-step-ranges)."),
    Reason("steps-unclear", "Steps were inferred, but they differ from each other, leave much of the trace out, or "
           "hold nothing that repeats within one, so they may not be steps.",
           "Do not compare their times with those of other traces; trace with ranges (see no-step-ranges)."),
    Reason("steps-of-another-process", "The ranges that name the steps are of one process, the kernels of others. What "
           "was launched after a range had ended belongs to the next step.",
           "Open the ranges in the process that launches."),
    Reason("ranks-missing", "The engine has more ranks than the trace shows decode steps of, so what a step waits for "
           "is not known.",
           "Trace all of the engine's processes; read engine.log for a rank that opened no range or ran no kernel."),
    Reason("ranks-unmatched", "The steps of the ranks cannot be held beside each other: no step is of all of them, or "
           "their hosts begin it so far apart that the traces have no clock in common.",
           "Trace all ranks of one engine in one session, on one host."),
    Reason("ranks-differ", "The ranks show other numbers of decode steps. Steps that not all of them show are left "
           "out.",
           "Nothing, if most steps are there; otherwise see which rank lost steps: perfgate kernels on the trace."),
    Reason("step-ranges-unclear", "Ranges name the steps, but several have one number, a number is too large, or some "
           "begin before an earlier one has ended. Such steps are numbered in order of time, and what is launched in "
           "two of them belongs to the later one.",
           "Call the profiler's step() once for each step, in one thread; open a range after the last one has closed."),
    Reason("launch-after-start", "Kernels begin before the calls that launched them, which cannot be: the clocks of "
           "host and device disagree, or the numbers that link kernels and calls are wrong.",
           "Do not use delays, host slack or the path of this trace; times on the device alone are not affected."),
    Reason("profiler-overhead", "The profiler did work of its own (a buffer flush) while steps ran, which delays them.",
           "Do not use the times of those steps; trace fewer iterations, so that no buffer fills."),
    Reason("outside-envelope", "The head runs decode steps that the scenario's envelope does not declare, and the "
           "base does not: other kernels, more of them, fewer from CUDA graphs, or other copies. This is exact, not an "
           "estimate.",
           "Read the diff. If the change is intended, learn the envelope again: perfgate envelope learn SCENARIO."),
    Reason("envelope-stale", "The base itself runs steps outside the scenario's envelope, so the envelope says nothing "
           "about the head.",
           "Learn it again from the base and commit it: perfgate envelope learn SCENARIO."),
    Reason("other-kernels", "Both sides are inside the envelope, but their most frequent decode steps run different "
           "kernels: other names, numbers or copies.",
           "Read the diff: another backend or another choice by a library may explain a change in time."),
    Reason("pattern-share", "A step pattern does not occur in the share of steps that the envelope declares.",
           "Look at what triggers it; if the share is right, change it: kernels.per_decode_step.patterns[].share."),
    Reason("graph-coverage", "CUDA graphs do not launch the share of kernels that the envelope declares.",
           "See which kernels moved: perfgate kernels on the trace; change "
           "kernels.per_decode_step.graph_coverage if that is right."),
    Reason("unlisted-time", "Kernels without a role do not take the share of kernel time that the envelope declares, "
           "so a table by role hides what they do.",
           'Give them a role: kernels.roles: {NAME: {match: "..."}}; perfgate kernels shows their names.'),
    Reason("no-decode-steps", "A traced trial shows no decode step from beginning to end, so it is unknown what a "
           "step runs.",
           "Read the trial's log: the capture range must span whole iterations, and the ranges that name the steps "
           "must be in the trace."),
    Reason("profiler-error", "The profiler reports an error of its own, or that it may have lost events, but none that "
           "the kernel table is known to need.",
           "Read its text; trace again if it is about kernels."),
    Reason("places-unknown", "Layers were found in the kernel sequence, but some of their gemms are in an order that "
           "is not a dense layer's. They have no place such as qkv or down, because a wrong one would be worse.",
           "Distinguish the gemms by name: roles: {NAME: {match: ...}} in the scenario. In eager mode, ranges of "
           "layers give the right numbers."),
    Reason("layers-unknown", "Steps or kernels are in no layer: they are a draft model's, the steps train, or the "
           "sequence of kernels does not show where layers begin, as in a network of convolutions. A wrong number "
           "would be worse than none.",
           "In eager mode, ranges such as perfgate.layer.5 give layers. Sums, roles and kernels are not affected."),
    Reason("device-events-unknown", "The trace holds device work in a category that perfgate does not know, so no sum "
           "includes it, and the device may have been busy where idle time is shown.",
           "Report the category and the version of PyTorch."),
    Reason("operators-only", "The file is a profile of operators or layers: it holds no kernels, copies, calls or "
           "streams of a device, so idle time, launches, overlap and roles inside a fused region are unknown.",
           "Trace the same program with nsys, or with the profiler of its device, for kernels."),
    # --- counters
    Reason("counters-empty", "The file that should hold ncu's counters is empty.",
           "Print the report again: ncu --import REPORT.ncu-rep --csv --page raw --print-units base."),
    Reason("counters-unreadable", "The file is not ncu's raw page as CSV, or contains something ncu does not write.",
           "Print the report again with LC_ALL=C: ncu --import REPORT.ncu-rep --csv --page raw --print-units base."),
    Reason("counters-no-package", "The file is a report of ncu, and the optional package ncu-report is not installed.",
           "pip install 'perfgate[ncu]'. Without it: ncu --import REPORT.ncu-rep --csv --page raw --print-units base."),
    Reason("counters-wrong-page", "The file is ncu's details page, whose labels change between versions.",
           "Print the raw page: ncu --import REPORT.ncu-rep --csv --page raw --print-units base."),
    Reason("counters-truncated", "A row of ncu's counters is cut short, so the file is incomplete.",
           "Copy or print it again; check whether the disk was full or ncu was killed."),
    Reason("counters-unit", "A counter has an impossible unit, so its size is unknown.",
           "Print with --print-units base; if a new ncu has a new unit, report it."),
    Reason("counters-no-kernel", "ncu ran but counted no kernel: its filters matched none, or none was launched.",
           "Widen -k, --launch-skip and --nvtx-include (a push/pop range needs a slash: 'NAME/'), and give "
           "--target-processes all."),
    Reason("counters-no-permission", "The driver permits performance counters to administrators only "
           "(ERR_NVGPUCTRPERM).",
           "As root: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > "
           "/etc/modprobe.d/counters.conf, then reboot; or start the container with --cap-add SYS_ADMIN. "
           "perfgate doctor --deep tests it."),
    Reason("counters-busy", "Another profiler or DCGM holds the GPU's performance counters.",
           "End it, or pause DCGM while counting: dcgmi profile --pause, then --resume."),
    Reason("counters-shared", "ncu may not read some metrics here, as on a part of a GPU (MIG).",
           "Count on a whole GPU, or leave out the metrics that the message names."),
    Reason("counters-unknown-metric", "This version of ncu does not know a metric for this GPU.",
           "See ncu --query-metrics; docs/counters.md has the names by architecture."),
    Reason("counters-other-gpu", "Counters and trace come from different GPUs, so bytes and throughputs may not be "
           "those of the timed kernels.",
           "Count on the same kind of GPU that was traced."),
    Reason("counters-other-workload", "Most of what ncu counted is not in the trace: the counters come from another "
           "model, batch or build, or from launches before the traced ones, such as the engine's start.",
           "Count the workload that was traced: the same model, engine arguments and batch, and decode steps alone "
           "(--launch-skip, or --nvtx-include with the step's range)."),
    Reason("counters-no-driver", "ncu found no CUDA driver, so nothing was counted.",
           "Run it where nvidia-smi works, without a stub libcuda.so in front of the driver's."),
    Reason("counters-no-ncu", "ncu is not on PATH, so nothing was counted.",
           "Install Nsight Compute (it comes with the CUDA toolkit) and put ncu on PATH, or remove counters:."),
    Reason("counters-no-gpu", "This machine has no GPU whose counters could be read.",
           "Measure on a machine with a GPU, or remove counters:."),
    Reason("counters-no-trace", "No traced trial of this side says which launches a decode step has.",
           "Find out why its traced trials failed: the launches to count are chosen from them."),
    Reason("counters-communication", "The decode step exchanges data between GPUs. ncu runs a kernel several times "
           "while the other ranks run theirs once, so a kernel that waits for another GPU would wait for ever.",
           "Count one rank's share on one GPU: tensor_parallel_size: 1, and a model config with that rank's number of "
           "heads and its part of intermediate_size. Traced trials show every rank."),
    Reason("counters-no-launch", "The traced decode step does not have the launches that counters: asks for.",
           "See what the step runs (perfgate kernels on the trial's trace) and change role, match, place or profile."),
    Reason("counters-timeout", "ncu did not finish the window within counted.limit.",
           "Ask for fewer launches or counters, or raise counted.limit; passes and launches multiply."),
    Reason("counters-other-launches", "The launches that ncu counted are not those at that place of the traced step.",
           "Where most differ, the step is not a decode step: name a later one with counted: {step: N}. A few may be a "
           "rarer kind of step."),
    Reason("counters-missing", "ncu did not return all counters that it was asked for.",
           "Another version or GPU has other names; docs/counters.md lists them. Use ncu's own name instead."),
    Reason("launches-differ", "The sides launch the kernels whose counter is gated a different number of times, so the "
           "mean per launch compares different things.",
           "Look at the steps' difference (perfgate envelope check): a split or fused kernel moves work between "
           "launches. Gate one place of the layer, or the step itself."),
    Reason("counter-differs", "A counter that repeats exactly differs from the base.",
           "The kernel was built or launched differently: compare compiler, tile sizes, launch bounds and shapes."),
    Reason("counter-out-of-bounds", "A counter of the head is outside the bound that the scenario declares, and the "
           "base's is inside.",
           "docs/counters.md says what the counter means, what usually changes it, and how to fix it."),
    Reason("counter-bound-stale", "The base itself is outside the declared bound of a counter, so the bound says "
           "nothing about the head.",
           "Measure the base's counters again and change the bound in counters:."),
    Reason("counter-unstable", "Trials of the base do not agree on a counter that should repeat exactly.",
           "The kernel is chosen at run time (autotuning): pin the choice, or remove the condition."),
    Reason("host-calls-added", "The head's host runs more in a decode or prefill step, at a price above "
           "calls.ignorable.",
           "Look at the functions listed, + is more on the head. If the work is meant, raise calls.ignorable."),
    Reason("host-calls-changed", "The head's host runs something else in a decode or prefill step, within "
           "calls.ignorable, or in prefill within what the decode steps save.",
           "Nothing, if the change is meant; each function that runs otherwise is listed."),
    Reason("host-state-changed", "The head's engine has imported other modules, or an iteration adds otherwise to the "
           "memory of its process. Neither has a price in a step.",
           "Nothing, if the change is meant. Modules take time at the start: gate start_time. What each iteration adds "
           "may be a leak: gate host_memory_growth."),
    Reason("launches-added", "The head's decode step launches more than the base's, or in other shapes or sizes, at a "
           "price above calls.ignorable; or its host copies pageable memory or waits for the device in each step. The "
           "price is the traced time of the kernels, copies and memsets that differ.",
           "Read the diff. If the change is meant, accept it: perfgate profile learn --from RUN --reason '...'."),
    Reason("launches-changed", "The head's decode step launches something else than the base's, or in other shapes "
           "or sizes, within calls.ignorable.",
           "Nothing, if the change is meant; each kernel, copy and memset that differs is listed."),
    Reason("launches-without-base", "The scenario has its kernels traced, and the profile holds no launches of steps "
           "that were traced alike: it is of before they were kept, or of other roles or iterations.",
           "Learn it again from the build to compare with: perfgate profile learn SCENARIO --base ... --reason '...'."),
    Reason("capacity-changed", "The head's engine holds other amounts of memory than the profile says, or than any "
           "visit of the baseline: of weights, or tokens of its KV cache.",
           "Nothing, if the change is meant. A smaller KV cache costs throughput under load, which no decode step "
           "shows: gate kv_token_capacity."),
    Reason("host-calls-vary", "Part of what the host runs depends on time or chance: it is compared by its range.",
           "Nothing while it is a small share. Above 2 % of a kind of step's events, or where what the head runs more "
           "at times is worth more than calls.ignorable, nothing is judged but a new wait: find what polls or waits."),
    Reason("host-calls-unlike", "The sides' calls were counted under other versions of Python, or by other means.",
           "Use the same minor version of Python on both sides."),
    Reason("no-profile", "There is no stored profile of this cell for this GPU and this version of Python.",
           "Make one from the build to compare with: perfgate profile learn SCENARIO --base ... --reason '...'."),
    Reason("host-calls-missing", "A side has no valid trial in which the host's calls were counted.",
           "Read why its called trial failed; perfgate run --resume goes on with the run."),
    # --- what engines say that they used
    Reason("path-unused", "No process of a side's engines imported, loaded or mapped anything of a folder of its "
           "path=. Where the sides differ by nothing else, both ran one build, and the cell is not measured.",
           "Install a plugin into the folder, so that vLLM finds its entry point: pip install --no-deps --target "
           "FOLDER PLUGIN. A patched package needs the package's own name (docs/configuration.md). See engine.log for "
           "a plugin that failed to load. A folder of data is declared: path=FOLDER,data."),
    Reason("path-use-unknown", "Whether anything of a folder of path= was used is not known: a process of each engine "
           "did not tell. A server with a command of its own is not asked.",
           "See engine.log for what the plugin says when it is loaded, or compare calls (run --profile-only)."),
    Reason("plugin-idle", "A plugin of the head was loaded, and nothing shows that it does anything: no other code "
           "refers to its functions and classes, and vLLM's own are as they are in the base's engines.",
           "See that it applies to this version of vLLM, this model and these engine arguments; engine.log has what it "
           "says. What it writes to files, or does in other programs, is not seen."),
)  # fmt: skip
