"""The reason codes of what profilers, counters and engines say: the second half of :mod:`perfgate.reasons`."""

from __future__ import annotations

from perfgate.reason_code import Reason

PROFILE_REASONS = (
    # --- traces
    Reason("trace-damaged", "Part of the trace is missing, wrong or not understood: steps that are cut off, calls "
           "without kernels or kernels without calls, times that no stream or clock can have, work of the profiler "
           "itself, device work of an unknown category, or ranks that are missing, differ in number or cannot be held "
           "beside each other. Figures that it touches are left out, or not known.",
           "Do not use the figures in question; other steps are whole (perfgate kernels --step N). Otherwise trace "
           "again: fewer iterations, one profiler alone, all ranks in one session, CUDA calls included, begun and "
           "ended between steps; where kernels of graphs are lost, without graphs. Report an unknown category."),
    Reason("host-slack-lost", "The head's host works longer per step and has less slack before the device waits, or "
           "the device waits already, which it did not with the base. Added host work does not lengthen the step until "
           "the slack is used up; from then on all of it does.",
           "Look for additional work of the host between steps (scheduling, input preparation, sampling). A smaller or "
           "faster model, or a slower CPU, has less slack to lose."),
    Reason("not-recorded", "The trace, or the result of another tool, does not record what a figure is made of, so it "
           "is left out, or what was asked for: a profile of operators has no kernels, a record of allocations no "
           "level before the capture. Or figures of a result contradict each other, so none is shown.",
           "Read what is missing or contradicts the rest; trace or measure again with it: kernels by nsys or the "
           "device's own profiler, memory from before the engine allocates."),
    Reason("steps-unclear", "Ranges do not name the steps or layers of the trace, contradict each other, or are of "
           "another process than the kernels. Steps are inferred from what repeats, layers and places only where the "
           "sequence of kernels shows them; the rest is left out.",
           "Nothing, if what repeats is a step; sums, roles and kernels do not depend on layers. Otherwise trace "
           "with ranges, opened once a step by the thread that launches, as perfgate's worker does (vLLM: profiler "
           "'cuda'; layers: perfgate.layer.5 in eager mode), or name gemms by roles: {NAME: {match: ...}}."),
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
    Reason("envelope-shares", "A share of the traced steps is not what the envelope declares: how often a pattern "
           "occurs, how many kernels CUDA graphs launch, or how much time kernels without a role take.",
           'See what moved: perfgate kernels on the trace. If the share is right, change it in '
           'kernels.per_decode_step (patterns[].share, graph_coverage) or kernels.unlisted; give kernels a role by '
           'kernels.roles: {NAME: {match: "..."}}.'),
    # --- counters
    Reason("counters-unreadable", "The file is not ncu's raw page as CSV: it is empty, cut short, another page, or "
           "holds something that ncu does not write, such as an impossible unit.",
           "Print the report again: LC_ALL=C ncu --import REPORT.ncu-rep --csv --page raw --print-units base. See "
           "whether the disk was full or ncu was killed; if a new ncu has a new unit, report it."),
    Reason("counters-not-countable", "What counters: asks for cannot be counted here: there is no GPU, no CUDA "
           "driver, no ncu on PATH, or no package that opens its reports; this ncu does not know a metric for this "
           "GPU; the step does not have the launches; or it exchanges data between GPUs, where kernels that ncu "
           "repeats would wait for ever.",
           "Measure on a machine with a GPU, its driver and Nsight Compute on PATH (pip install 'perfgate[ncu]' "
           "opens reports), or change counters: to what ncu --query-metrics and the step have (perfgate kernels on "
           "its trace). Of several GPUs count one rank's share on one: tensor_parallel_size: 1, with its heads and "
           "its part of intermediate_size."),
    Reason("counters-no-permission", "The driver permits performance counters to administrators only "
           "(ERR_NVGPUCTRPERM).",
           "As root: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' > "
           "/etc/modprobe.d/counters.conf, then reboot; or start the container with --cap-add SYS_ADMIN. "
           "perfgate doctor --deep tests it."),
    Reason("counters-busy", "ncu may not read counters now: another profiler or DCGM holds them, or some of them are "
           "shared, as on a part of a GPU (MIG).",
           "End what holds them, or pause DCGM while counting (dcgmi profile --pause, then --resume). Otherwise "
           "count on a whole GPU, or leave out the metrics that the message names."),
    Reason("counters-other-workload", "The counters are not of what was traced: they come from another GPU, model, "
           "batch or build, or from launches before the traced ones, such as the engine's start.",
           "Count the workload that was traced, on the same kind of GPU: the same model, engine arguments and batch, "
           "and decode steps alone (--launch-skip, or --nvtx-include with the step's range)."),
    Reason("counters-missing", "ncu did not count what it was asked for: no kernel, other launches, not all counters, "
           "not within counted.limit; or a side has no valid trial that says what to count.",
           "Read the text, the trial's log, and why its traced trials failed. Nothing counted: widen -k, "
           "--launch-skip and --nvtx-include (a range needs a slash: 'NAME/'), with --target-processes all. Too "
           "slow: fewer launches or counters, or raise counted.limit. Other launches: name a later step, counted: "
           "{step: N}. Other names: docs/counters.md."),
    Reason("counter-differs", "A counter that repeats exactly differs from the base.",
           "The kernel was built or launched differently: compare compiler, tile sizes, launch bounds and shapes."),
    Reason("counter-out-of-bounds", "A counter of the head is outside the bound that the scenario declares, and the "
           "base's is inside.",
           "docs/counters.md says what the counter means, what usually changes it, and how to fix it."),
    Reason("counter-bound-stale", "The base itself is outside the declared bound of a counter, so the bound says "
           "nothing about the head.",
           "Measure the base's counters again and change the bound in counters:."),
    Reason("counts-vary", "What should repeat exactly does not: part of what the host runs depends on time or chance "
           "and is compared by its range, or trials of the base do not agree on a counter.",
           "Nothing while it is a caution for a small share. Otherwise find what polls or waits (nothing is judged "
           "above 2 % of a kind of step's events, or where it may be worth more than calls.ignorable); a kernel that "
           "is chosen at run time (autotuning): pin the choice."),
    Reason("work-added", "The head does more in a step, at a price above calls.ignorable: its host runs more, or it "
           "launches more or in other shapes or sizes; or its host copies pageable memory or waits in each step. "
           "Launches are priced by the traced time of what differs.",
           "Look at what is listed, + is more on the head. If the change is meant, raise calls.ignorable, or accept "
           "it: perfgate profile learn --from RUN --reason '...'."),
    Reason("work-changed", "The head's host runs, or its step launches, something else, within calls.ignorable, or in "
           "prefill within what the decode steps save.",
           "Nothing, if the change is meant; all that differs is listed."),
    Reason("engine-state-changed", "The head's engine holds something else, which has no price in a step: other "
           "modules, other memory that an iteration adds, other amounts of weights or tokens of the KV cache than the "
           "profile or any visit of the baseline.",
           "Nothing, if the change is meant. Modules take time at the start: gate start_time. What each iteration "
           "adds may be a leak: gate host_memory_growth. A smaller KV cache costs throughput under load: gate "
           "kv_token_capacity."),
    Reason("no-profile", "Nothing is there to hold exact counts against: no stored profile of this cell for this GPU "
           "and version of Python, none with launches that were traced alike, or no base whose counters a condition "
           "names.",
           "Make a profile of the build to compare with: perfgate profile learn SCENARIO --base ... --reason '...'. "
           "Counters: count both builds in one run (perfgate run SCENARIO --base ... --head ...), or begin the "
           "baseline anew (perfgate baseline promote RUN --anew --reason '...'); bounds like '<= 0' are checked "
           "without a base."),
    # --- what engines say that they used
    Reason("path-unused", "No process of a side's engines imported, loaded or mapped anything of a folder of its "
           "path=. Where the sides differ by nothing else, both ran one build, and the cell is not measured.",
           "Install a plugin into the folder, so that vLLM finds its entry point: pip install --no-deps --target "
           "FOLDER PLUGIN. A patched package needs the package's own name (docs/configuration.md). See engine.log for "
           "a plugin that failed to load. A folder of data is declared: path=FOLDER,data."),
)  # fmt: skip
