"""The reason codes: why a verdict is what it is, and what to do about it.

One table serves capture (which records why a trial failed), judge (which says why a run is not a pass) and the reports.
It imports nothing else, because capture and judge must not import each other and both need these words.
"""

from __future__ import annotations

from perfgate.profile_reasons import PROFILE_REASONS
from perfgate.reason_code import CODE, Reason

__all__ = ["CODE", "MERGED", "REASONS", "Reason", "current"]

_TABLE = (
    # --- a trial failed
    Reason("subject-not-found", "The interpreter or a folder of a subject does not exist, or is something else.",
           "Check python= and path= of that subject."),
    Reason("engine-import-failed", "The subject's interpreter cannot import vllm or torch.",
           "Name the interpreter that has vLLM: --base python=...; without it perfgate's own is taken. Or run the "
           "subject's python with -P -c 'import vllm' and repair its environment; path= puts folders in front."),
    Reason("engine-start-failed", "The engine raised an error or ended while it started.",
           "Change what the engine's own error names; the whole engine.log is in the trial's folder."),
    Reason("engine-start-timeout", "The engine was not ready within measure.start_timeout.",
           "Look at engine.log for what it waits on; raise measure.start_timeout if it was only slow."),
    Reason("unfit-caches", "The engine did not start with the compile caches that an earlier visit kept for it. They "
           "are forgotten, and it is started again with others or with empty ones. A pair lost so does not count "
           "towards measure.max_dropped_pairs.",
           "Nothing, if it starts then. If that happens again and again, set PERFGATE_CACHES=0 and report what "
           "engine.log says."),
    Reason("engine-failed", "The engine failed after it had started: it raised an error, ended, hung, or its worker's "
           "answer violates the protocol.",
           "Read the text and engine.log in the trial's folder: out of memory and CUDA errors show there. If the "
           "workload is only slow, raise measure.iteration_timeout."),
    Reason("request-failed", "A request ended before its declared length or without its output_tokens, or a server "
           "dropped more than one in a hundred and answered when they were sent again. In results of another tool "
           "requests were lost, so the times are those of the rest.",
           "Check max_model_len, the engine's log, and plugins that stop generation early; a workload must run to "
           "its declared length."),
    Reason("preempted", "The scheduler preempted a request, so the trial mixes decode with recomputation.",
           "Give the KV cache more room (kv_cache_memory_bytes) or reduce batch or lengths."),
    Reason("internal-error", "perfgate itself failed with an unexpected error.",
           "Report it with the traceback; the other cells and every finished trial of this one are kept."),
    Reason("process-left", "A process of a trial or of an earlier one is still alive, hid from perfgate, or listens "
           "on the ports that the next trial needs.",
           "End the process named in the text, and find out what the subject starts: a trial must run alone."),
    Reason("evidence-missing", "A trial with a profiler or with counts of the host's calls has nothing that could be "
           "judged: no profile, no trace that can be read, no decode step from beginning to end; or a side has no "
           "valid trial of that kind.",
           "Read the text and engine.log in the trial's folder. perfgate doctor --deep traces a tiny program and "
           "says what is missing (vLLM before 0.13 has no profiler_config); perfgate kernels shows what a trace "
           "holds. Then perfgate run --resume goes on with the run."),
    Reason("client-failed", "perfgate's own client, which sends requests to a server and times the answers, failed.",
           "Read client.log in the trial's folder and report it; every finished trial is kept."),
    Reason("client-late", "perfgate's own client was late in a window that counts: it sent requests after they were "
           "due (p99 of 1 ms or more), so the server was not given the declared load, or read answers after they came "
           "(p95 of 3 ms or more), so their times are the client's own. It says nothing of the subject.",
           "Give the client a core that nothing else uses, or a lower rate or fewer users: docs/load.md says what it "
           "can do, and benchmarks/client_rate.py what it can do here."),
    Reason("rate-out-of-range", "The highest rate at which a server meets an objective was sought, and no window of "
           "the search met it, or every one did: that rate is not between the bounds.",
           "Widen arrival.find's least and most, or change its slo or share; a head that meets it at no rate is "
           "slower."),
    # --- a trial was disturbed
    Reason("gpu-throttled", "A GPU throttled while the trial ran: because of heat, of the power supply (power brake), "
           "or for a cause that it does not name.",
           "Check cooling, power supply and neighbouring GPUs, or lock a clock the GPU can sustain: clocks: {mode: "
           "lock, sm_mhz: ...}. Without a cause look at nvidia-smi -q -d PERFORMANCE and the kernel's log; the GPU "
           "may be defective."),
    Reason("clock-not-held", "The clock is locked, and nothing shows that it held: its median in pure decode was more "
           "than 15 MHz off, as a lock is a ceiling below which power or heat push the clock, or no reading fell into "
           "pure decode.",
           "Lock a lower clock that the GPU sustains under full load; check the power limit. Where no reading fell "
           "into decode, make the iterations longer (output_tokens) or more (iterations): a clock is read about 12 "
           "times a second."),
    # --- the machine is not fit
    Reason("gpu-missing", "CUDA_VISIBLE_DEVICES names fewer GPUs that can be watched than the largest engine takes.",
           "Name whole GPUs by index or UUID. Instances of a split GPU (MIG) cannot be guarded; an empty "
           "CUDA_VISIBLE_DEVICES means the CPU."),
    Reason("gpu-busy", "Something else disturbs a GPU: a process that is not ours computes or holds memory there, or "
           "engines on other GPUs of this host change a trial by more than they may, or by an amount that is not "
           "known.",
           "Wait until it is free, end the process named, or choose other or fewer GPUs (CUDA_VISIBLE_DEVICES, "
           "--gpus): one GPU serves one measurement. Where engines disturb each other, see what they share: cores, "
           "memory, power, cooling; where it is not known, run again."),
    # --- the machine
    Reason("clock-no-permission", "This user may not lock or reset the GPU's clocks.",
           "Install the helper for this (.github/runner/README.md), run as root, or write "
           "clocks: {mode: observe}. Never give a blanket sudo rule for nvidia-smi."),
    Reason("clock-not-supported", "The GPU cannot hold the clock that the scenario asks for, or cannot lock clocks.",
           "perfgate clocks show lists what it can hold; otherwise write clocks: {mode: observe}."),
    Reason("clocks-held", "Another running perfgate process has locked this GPU's clocks.",
           "Wait for that run or end it by its process id; it unlocks them when it exits. perfgate clocks show names "
           "it."),
    Reason("gpu-lost", "The GPU no longer answers the driver: it has fallen off the bus, or needs a reset.",
           "Read the kernel's log (dmesg, Xid); reset the GPU (nvidia-smi --gpu-reset) or reboot."),
    Reason("gpu-unreadable", "NVML, the driver's library, does not answer or does not know the GPU, or the clock "
           "helper failed.",
           "Run nvidia-smi and fix what it reports: driver and library of different versions, a device missing from "
           "the container, a driver that hangs."),
    # --- a subject was not built
    Reason("build-failed", "A git ref could not be made into a subject: a command of [build] failed or took too long, "
           "git refused, or the commands did not create what [build] names.",
           "Read the end of the log, or all of it in the build's folder; then correct the commit or [build] in "
           "perfgate.toml (docs/configuration.md). The next run builds it again, and so does perfgate bisect --resume "
           "where no commit of its search was built since."),
    Reason("scenario-refused", "The scenario asks for something that the build of this commit cannot do, so perfgate "
           "bisect left the commit out.",
           "Search with a scenario that all commits of the line can run: leave out the argument that is named, or "
           "name a later good commit."),
    # --- a cell was not measured
    Reason("one-sided-failures", "Pairs were dropped for trials of one subject: all of more than "
           "measure.max_dropped_pairs allows, or more than chance puts on one side. The remaining trials are those in "
           "which that subject did not fail, so they say nothing about the others.",
           "Treat it as a defect of that subject, unless the text says that chance often does this. Its failures are "
           "listed with the engine's own words. Then measure again: --resume does not forget dropped pairs."),
    Reason("not-started", "The run ended before this cell had any pair.",
           "See the run's other reasons; continue with perfgate run --resume FOLDER."),
    Reason("metric-missing", "A gated metric has no value in some trials.",
           "Energy, counters, utilisation and memory of a GPU: measure on one, or remove the gate. ITL: with a batch "
           "above max_num_seqs no step gives every request a token: lower the batch. Any other metric: remove the "
           "gate, or use an engine that reports it."),
    Reason("metric-unusable", "The gated metric has no values that can be compared: a value is zero, negative or not "
           "finite, a side runs no kernel of the role, launches it another number of times, or the least time of a "
           "step (mbu, mfu) is unknown.",
           "Read the text and the trials' values in the record, then gate what has values: itl_median, or the roles "
           "that do the work now (kernels.roles names your own). Zeros of one run are counted by pairs "
           "(docs/servers.md); where both sides are always zero, change the load or the bounds of slo. GPUs and "
           "models with a floor are in docs/counters.md."),
    Reason("interrupted", "The run was stopped by Ctrl-C, SIGTERM or SIGHUP.",
           "Every finished trial is in the run folder; continue with perfgate run --resume FOLDER."),
    Reason("out-of-budget", "The next pair would not have ended within --budget.",
           "Every finished trial is in the run folder; continue with perfgate run --resume FOLDER."),
    Reason("storage-failed", "The run folder could not be written: its disk is full, read-only or gone, or a file "
           "would be too large to read again.",
           "Fix what the text names; every trial reported as finished is on disk, so continue with "
           "perfgate run --resume FOLDER."),
    Reason("run-folder-busy", "Another process is measuring into this run folder.",
           "Wait for it or end it; meanwhile perfgate judge FOLDER shows what it has."),
    # --- no decision
    Reason("undecided", "The data so far exclude neither a regression of must_catch size nor a slowdown within "
           "ignorable.",
           "Take more pairs: perfgate run --resume FOLDER, with --more 4 once the looks are used up; figures from "
           "elsewhere need more trials. Or widen the margins to what this machine can show, or quiet the machine."),
    Reason("slower-apart", "The machine had two states. Pairs with a state in common would pass, and others are slower "
           "by more than must_catch: those of a state that has too few to pass, or all together with those "
           "that have none in common, beyond what the states explain.",
           "Take more pairs: perfgate run --resume FOLDER, with --more 4 once the looks are used up. A head that is "
           "slow only where its base is in another state may have a third one: look at its iterations."),
    Reason("too-few-pairs", "No look has been reached, so nothing can be decided.",
           "Measure at least as many pairs as the first look asks for."),
    Reason("quick-run", "--quick measures one trial a subject: a look at the numbers, never a verdict.",
           "Leave out --quick, or --preset quick, for a verdict."),
    Reason("running-server", "A server that ran already is one replicate, however often it is measured: nobody knows "
           "how its next start would differ, nor which build it is. What it shows is printed and never blocks.",
           "Have perfgate start the server: --base python=..., or engine.command in the scenario."),
    Reason("advisory-unpaired", "What is compared was not taken in pairs of one run whose order is known: in visits, "
           "apart, beside a baseline with few visits, or in pairs where one side ran first more often. Drift between "
           "them counts as a difference, so that it blocks nothing and passes only where the text says so; the "
           "verdict is what the figures would mean otherwise.",
           "Measure both builds in pairs: perfgate run SCENARIO --base ... --head ... Further visits (perfgate "
           "baseline promote RUN; from eight on a gate can pass), more trials a side or wider margins help more "
           "slowly. A CSV of pairs needs a column order, 1 or 2, or --order randomised where a coin decided."),
    Reason("would-regress", "The visits of the baseline say that this gate regressed. That blocks nothing by itself: "
           "few visits do not show how far skewed visits, outliers or cards reach, and by them up to 11 % of runs at "
           "ignorable would be blocked. Pairs with the build that was promoted last decide, on fresh data alone.",
           "Measure pairs: perfgate run SCENARIO --base ... --head ... Beside --against baseline they are taken at "
           "once where --base or [subjects.base] names that build, or it was built of a commit, and --budget allows."),
    Reason("anchor-weak", "The anchor tells less than it could: no visit of the baseline was measured beside it, so "
           "that times were compared, which differ by machine and day; or head and anchor differ by more than 5 %, so "
           "that what a machine does to one it may do less to the other.",
           "Promote this run, or measure the build of the baseline beside this anchor and promote that: from then on "
           "ratios are compared. Where the head is far from it, name a newer anchor in [subjects.anchor]."),
    Reason("no-baseline", "There is no stored baseline for this cell or gate, so there is nothing to compare with.",
           "Make this run the first one: perfgate baseline promote RUN --reason '...'. A gate that is newer than the "
           "baseline's visits gets its values with the next promotion."),
    Reason("baseline-broken", "A baseline's file is not a whole lineage: an entry was changed, dropped, added or "
           "moved, or a merge was left unfinished.",
           "Restore the file from its repository's history, then promote the run again; entries are never edited. To "
           "remove a baseline, delete its file in a commit of its own."),
    Reason("no-counterpart", "Only one subject was measured, so there is nothing to compare it with.",
           "Name the other side with --base or --head, or compare two records: perfgate compare A B."),
    Reason("different-cells", "The two sides hold different cells: model, engine arguments, workload or measurement "
           "differ, or the version of Python or the means by which calls were counted; of results of another tool "
           "what was asked for, or how many tokens requests had.",
           "Compare records of the same scenario at the same cell_id, results that were asked for the same, calls "
           "under the same minor version of Python; a baseline of the cell as it is now begins with perfgate "
           "baseline promote RUN --reason '...'."),
    Reason("different-machines", "The machines differ in something that decides performance.",
           "Measure both on one machine, or compare records of the same machine class; each class has baselines of "
           "its own."),
    Reason("clocks-differ", "The median SM clocks of the two sides differ by more than 1 %, and by more than chance "
           "explains, so a difference in time may be one in clocks. A head that is slower is blocked all the same "
           "where its clocks are the higher ones, or where the order of each pair was drawn: there its clocks are its "
           "own doing.",
           "Lock the clocks (clocks: {mode: lock, sm_mhz: ...}), or find why one side runs at another clock: more "
           "power, more heat."),
    Reason("states-undecided", "The machine had two states, and they keep a gate open: a trial has too little "
           "of either, too many pairs of head and anchor speak against their median, or "
           "the head is in the slow state so often that chance is a poor explanation.",
           "Take more pairs (perfgate run --resume RUN --more 4); beside an anchor measure pairs with the base "
           "instead (perfgate run --base ... --head ...). A head that is slow now and then has a third level: look "
           "at its iterations. docs/states.md says what the states are."),
    # --- cautions
    Reason("near-margins", "The gate is close to what its margins can tell: it passed and the estimate is above "
           "ignorable or, below the gate's absolute floor, an established slowdown; or the pairs differ by less than "
           "one step of what they were measured with, so that its bounds are a step further out.",
           "Nothing, if margins and floor are meant so: what passes excludes a regression of must_catch size, and a "
           "smaller one is likely. Otherwise lower the floor, or measure something longer than a step of the "
           "instrument."),
    Reason("counted-by-sign", "The metric was 0 in some trials, which has no ratio, so pairs are counted: a head that "
           "is worse by more than ignorable in enough of them blocks, and passes where every one is within must_catch.",
           "Read both sides' values. A floor: in the metric's unit says which changes of a small count do not matter."),
    Reason("times-uneven", "Some times are far from the others, or are likely to be: an iteration, steps, a trial, "
           "some pairs, the restarts of a side in two groups, or an engine or client that had to share its cores. All "
           "still count, so means, percentiles and throughput spread by it.",
           "Find what else ran at the trials named and stop it; start perfgate without nice (docs/ray.md), and leave "
           "its client a core (docs/load.md). Where restarts differ, compare the share of slow ones on both sides, "
           "and take more pairs: a head that is slow in some restarts can pass."),
    Reason("two-states", "The machine had two states, or the probe that tells them was not read, read more than two "
           "levels, or leans to one build. The text says how pairs were compared, and what such a comparison cannot "
           "show.",
           "Nothing where the gap between the states is not the build's and the comparison in the text is the one "
           "that counts. Otherwise take more pairs (perfgate run --resume RUN --more 4) or measure on another GPU; "
           "beside an anchor measure pairs with the base. docs/states.md says what moves the probe, and what "
           "PERFGATE_PROBE=0 does."),
    Reason("outputs-differ", "The two sides generated different tokens for the same prompts: faster because wrong is "
           "not faster.",
           "Explain the difference (numerics, kernels, sampling) before trusting the times."),
    Reason("outputs-unstable", "One side generated different tokens for the same prompts in different trials.",
           "Numerics depend on the batch or on a race; outputs-differ cannot be judged then."),
    Reason("load-unproven", "What the engine loaded is not shown to be what was asked for: no process told whether it "
           "used a folder of path=, a plugin was loaded and changes nothing that is seen, or the bytes of weights are "
           "1.5 times what config.json is counted as, or less than two thirds, so that there is no floor.",
           "Look in engine.log for what was loaded, and what a plugin says; see that it applies to this vLLM, model "
           "and arguments, or compare calls (run --profile-only). GPTQ without its weights' files needs "
           "modules_in_block_to_quantize."),
    Reason("engine-tells-less", "The engine or server tells its work otherwise than token by token: several tokens "
           "came at once (speculative decoding), so that the gap was divided; tokens of a server's events were "
           "counted by other means on one side; or this vLLM does not show preemptions.",
           "Keep both sides alike in what they deliver and tell: acceptance, and what the API says of its tokens. "
           "Give the KV cache ample room, as a preempted trial might not be noticed."),
    Reason("not-steady", "A server was not at rest in a measured window: times still changed after more warm-up than "
           "declared, it refused requests (429, 503) at the rate found so that a lower one was measured, or it closed "
           "connections so that requests were sent again.",
           "Raise measure.warmup_iterations, or make windows longer (requests, duration). Where requests pile up, "
           "lower the rate. A connection closed now and then is nothing; else read the server's log "
           "(docs/servers.md)."),
    Reason("dropped-pairs", "Pairs were dropped for a failed trial and replaced; as a reason more of them, over all "
           "visits, than measure.max_dropped_pairs allows.",
           "Remove the cause listed: a build that fails now and then is not healthy, and failures on one side leave "
           "its best trials. After too many measure again: --resume goes on only if no engine was started for the "
           "lost pairs."),
    Reason("subject-changed", "Files of a subject that an import can reach changed while it was measured, or since an "
           "earlier visit, so its trials are of two builds, and what it was measured with does not count. As a "
           "caution: versions of its packages differ between trials or machines, or so much was touched or is there "
           "that its files were not read.",
           "Let nobody edit or install what is measured, and tools write elsewhere; copy it first, or name a commit "
           "(ref=), which perfgate builds apart, or a smaller path=. Then measure anew. What counts as a file of a "
           "subject: docs/configuration.md."),
    Reason("fills-differ", "The sides' compile caches were filled on different days: each keeps what it drew then.",
           "For a fresh draw of both: PERFGATE_CACHES=0 perfgate run ..."),
    Reason("memory-grows", "The head's memory is higher after nearly every iteration than ever before, and grows more "
           "than the base's: the head keeps something of each batch. Chance says so of one cell in a hundred.",
           "Look for what is kept of finished requests: caches that nobody empties, lists that grow. To block it, gate "
           "host_memory_growth or device_memory_growth."),
    Reason("same-subject", "Base and head are the same build: an A/A run, whose verdict tests the machine.",
           "Nothing, if that is intended."),
    # --- a plan that several machines measure
    Reason("one-shard", "Only one part of the plan is judged. Its gates stop at the level that they have in the whole "
           "plan, whose verdict is that of all parts together.",
           "Judge all parts: perfgate judge SHARD..."),
    Reason("shard-missing", "A part of the plan was not given, so its cells are not measured.",
           "Measure it, on any machine of its class, and judge all parts again: perfgate plan --left SHARD... names "
           "what is left."),
    Reason("shard-foreign", "What was given, or is to be measured, is not one part of the plan: its cells, margins, "
           "builds, seed or division are others, it is there twice, or a later attempt of its job drew it again.",
           "Give each part of one plan once. Measure every part with the same scenarios, builds and perfgate.toml, "
           "and the plan that perfgate plan printed. After a failure re-run all jobs, the one that plans too."),
    Reason("second-try-unused", "A second try of a shard was set aside: it is of another plan, or has a cell that the "
           "first try did not leave, or there are several. No cell has two chances; the rest is judged without it.",
           "Nothing, where every cell was measured: a job that was run again leaves such a try behind. Else measure "
           "the plan anew."),
    # --- a night
    Reason("reference-unsteady", "A build was compared with itself and did not pass. If it was slower or faster than "
           "itself, the machine cannot be trusted tonight, so the head's result says nothing about the head. If it was "
           "undecided, the head does not pass either, but a regression of the head is shown.",
           "Find out what else ran on the machine, check its clocks and temperatures, run perfgate doctor, then run "
           "the night again. It happens by chance once in a hundred nights."),
)  # fmt: skip

REASONS: dict[str, Reason] = {reason.code: reason for reason in (*_TABLE, *PROFILE_REASONS)}
"""Every code that a record, an outcome or an error of perfgate may carry."""

MERGED = {
    old: code
    for code, merged in {
        "engine-failed": "engine-died iteration-timeout iteration-failed protocol-error",
        "request-failed": "wrong-token-count",
        "process-left": "start-refused",
        "evidence-missing": "profile-failed trace-missing trace-unreadable no-decode-steps host-calls-missing",
        "gpu-throttled": "thermal-slowdown power-brake hardware-slowdown",
        "clock-not-held": "clock-unproven",
        "gpu-busy": "foreign-process stations-interfere",
        "metric-unusable": "role-gone no-floor no-ratio non-finite no-slack launches-differ",
        "dropped-pairs": "too-many-dropped-pairs",
        "subject-changed": "subject-unknown",
        "advisory-unpaired": "undecided-by-baseline undecided-unpaired order-unknown advisory-few-visits",
        "anchor-weak": "anchor-unknown anchor-far",
        "different-cells": "host-calls-unlike",
        "states-undecided": "no-common-state slow-state-leans pairs-disagree unplaced-trials",
        "two-states": "within-states bounded-pairs states-ignored waits-lean probe-apart probe-levels no-probe",
        "near-margins": "slower-than-ignorable below-floor below-resolution",
        "times-uneven": (
            "estimates-disagree mode-share iterations-uneven steps-stall trials-uneven client-shares-cores low-priority"
        ),
        "engine-tells-less": "multi-token-deliveries counted-otherwise preemptions-unknown",
        "not-steady": "rate-lowered requests-sent-twice",
        "load-unproven": "weights-apart path-use-unknown plugin-idle",
        "trace-damaged": (
            "trace-incomplete launch-not-traced kernels-overlap launch-after-start profiler-overhead profiler-error "
            "device-events-unknown ranks-missing ranks-unmatched ranks-differ"
        ),
        "not-recorded": "memory-from-zero operators-only",
        "steps-unclear": (
            "no-step-ranges steps-inferred steps-of-another-process step-ranges-unclear places-unknown layers-unknown"
        ),
        "envelope-shares": "pattern-share graph-coverage unlisted-time",
        "counters-unreadable": "counters-empty counters-wrong-page counters-truncated counters-unit",
        "counters-not-countable": (
            "counters-no-ncu counters-no-gpu counters-no-driver counters-no-package counters-unknown-metric "
            "counters-no-launch counters-communication"
        ),
        "counters-busy": "counters-shared",
        "counters-missing": "counters-no-kernel counters-no-trace counters-timeout counters-other-launches",
        "counters-other-workload": "counters-other-gpu",
        "counts-vary": "host-calls-vary counter-unstable",
        "work-added": "host-calls-added launches-added",
        "work-changed": "host-calls-changed launches-changed",
        "engine-state-changed": "host-state-changed capacity-changed",
        "no-profile": "launches-without-base counter-without-base",
    }.items()
    for old in merged.split()
}
"""Codes of earlier versions, and names of what a trial tells of itself, with the code that says so today."""


def current(code: str) -> str:
    """The code of today: what records, verdicts and stops of earlier versions called otherwise."""
    return MERGED.get(code, code)
