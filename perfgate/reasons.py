"""The reason codes: why a verdict is what it is, and what to do about it.

One table serves capture (which records why a trial failed), judge (which says why a run is not a pass) and the reports.
It imports nothing else, because capture and judge must not import each other and both need these words.
"""

from __future__ import annotations

from perfgate.profile_reasons import PROFILE_REASONS
from perfgate.reason_code import CODE, Reason

__all__ = ["CODE", "REASONS", "Reason"]

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
    Reason("engine-died", "The engine's process ended in the middle of a trial.",
           "Read engine.log in the trial's folder: out of memory and CUDA errors show there."),
    Reason("iteration-timeout", "An iteration did not finish within measure.iteration_timeout.",
           "Look for a hang in engine.log; raise measure.iteration_timeout if the workload is that slow."),
    Reason("iteration-failed", "The engine raised an error while it ran an iteration.",
           "Read the engine's error below, or engine.log in the trial's folder."),
    Reason("protocol-error", "The worker's answer violates the protocol.",
           "Something wrote to the worker's private descriptors, or a worker of another version ran. See engine.log."),
    Reason("request-failed", "A request ended before its declared length, or a server dropped more than one in a "
           "hundred and answered when they were sent again. In results of another tool requests were lost, so the "
           "times are those of the rest.",
           "Check max_model_len and the engine's log; a workload must run to its declared length."),
    Reason("wrong-token-count", "A request did not get output_tokens tokens.",
           "Check max_model_len, and plugins that stop generation early."),
    Reason("preempted", "The scheduler preempted a request, so the trial mixes decode with recomputation.",
           "Give the KV cache more room (kv_cache_memory_bytes) or reduce batch or lengths."),
    Reason("internal-error", "perfgate itself failed with an unexpected error.",
           "Report it with the traceback; the other cells and every finished trial of this one are kept."),
    Reason("start-refused", "A process of an earlier trial is still alive and did not end on request.",
           "End the process named in the text, then run again."),
    Reason("process-left", "A process that the engine started survived it, or hid from perfgate.",
           "End the process named in the text, and find out what the subject starts: a trial must run alone."),
    Reason("profile-failed", "The engine could not open or close the profiler's window.",
           "Read the engine's error below: vLLM before 0.13 has no profiler_config, and another profiler may be "
           "active."),
    Reason("trace-missing", "The profiler left no trace.",
           "Run perfgate doctor --deep, which traces a tiny program and says what is missing; see engine.log."),
    Reason("trace-unreadable", "The profiler's trace cannot be read, or is not what it claims to be.",
           "Read the text below; perfgate kernels on the trace in the trial's folder says the same."),
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
    Reason("foreign-process", "A process that is not ours computed on a GPU of the trial, or held memory there before.",
           "End the process named or give it another GPU; one GPU serves one measurement."),
    Reason("thermal-slowdown", "A GPU throttled because of heat while the trial ran.",
           "Check cooling and neighbouring GPUs, or lock a clock the GPU can sustain: clocks: {mode: lock, sm_mhz: "
           "...}."),
    Reason("power-brake", "A GPU throttled because of the power supply while the trial ran (power brake).",
           "Check the power supply of the machine and of its neighbours in the rack."),
    Reason("hardware-slowdown", "A GPU throttled while the trial ran, for a cause that it does not name.",
           "Look at nvidia-smi -q -d PERFORMANCE and the kernel's log; the GPU may be defective."),
    Reason("clock-not-held", "The clock is locked, but its median in pure decode was more than 15 MHz off: a lock is a "
           "ceiling, and power or heat pushed the clock below it.",
           "Lock a lower clock that the GPU sustains under full load; check the power limit."),
    Reason("clock-unproven", "The clock is locked, but no reading fell into pure decode, so nothing shows that it "
           "held.",
           "Make the iterations longer (output_tokens) or more (iterations): a clock is read about 12 times a second."),
    # --- the machine is not fit
    Reason("gpu-missing", "CUDA_VISIBLE_DEVICES names fewer GPUs that can be watched than the largest engine takes.",
           "Name whole GPUs by index or UUID. Instances of a split GPU (MIG) cannot be guarded; an empty "
           "CUDA_VISIBLE_DEVICES means the CPU."),
    Reason("gpu-busy", "Somebody else computes on a GPU, or holds memory there, so nothing was measured.",
           "Wait until it is free, end the process named, or choose another GPU by CUDA_VISIBLE_DEVICES."),
    Reason("stations-interfere", "Engines on other GPUs of this host change a trial by more than they may, or that is "
           "not known.",
           "Name fewer GPUs (--gpus), or leave it out; see what they share: cores, memory, power, cooling. Where "
           "it is not known, run again."),
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
    Reason("too-many-dropped-pairs", "More pairs were lost over all visits than measure.max_dropped_pairs allows.",
           "Remove the cause listed for the dropped pairs, then measure again: the trials stay in the record, but "
           "--resume continues only if no engine was started for the lost pairs."),
    Reason("not-started", "The run ended before this cell had any pair.",
           "See the run's other reasons; continue with perfgate run --resume FOLDER."),
    Reason("metric-missing", "A gated metric has no value in some trials.",
           "Energy, counters, utilisation and memory of a GPU: measure on one, or remove the gate. ITL: with a batch "
           "above max_num_seqs no step gives every request a token: lower the batch. Any other metric: remove the "
           "gate, or use an engine that reports it."),
    Reason("role-gone", "One side runs no kernel of the gated role: they were fused into others, renamed, or replaced "
           "by another backend. It was measured, but there is no time to compare.",
           "See in the attribution and the kernel diff where the work went; gate the roles that do it now "
           "(kernels.roles names your own), or the whole step by itl_median."),
    Reason("no-floor", "The least time of a decode step is unknown, so there is no utilisation (mbu, mfu) to judge: "
           "the GPU or the model's architecture is not in the tables.",
           "Gate itl_median, which needs no floor. docs/counters.md lists what is supported; the GPUs' roofs are in "
           "perfgate/counters/gpu_roofs.py."),
    Reason("no-ratio", "The metric was 0 in some trials. That was measured, but zero has no ratio to anything, and "
           "these trials are not pairs of one run whose signs could be counted, or no pair shows anything.",
           "Compare both builds in one run, which counts pairs where values are zero (docs/servers.md). Where both "
           "sides are always zero, change the load or the bounds of slo, so that the metric can move."),
    Reason("non-finite", "A measured value is zero, negative or not finite, so it has no ratio.",
           "Look at the trial's values in the record; the measurement is broken."),
    Reason("no-slack", "The device waited for the host, so the slack is zero or negative and has no ratio to anything.",
           "Read the values and the caution host-slack-lost; gate itl_median, which shows every further cost of the "
           "host."),
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
           "by more than must_catch: all together with those that have none, beyond what the states explain, or those "
           "of a state that has too few to pass.",
           "Take more pairs: perfgate run --resume FOLDER, with --more 4 once the looks are used up. A head that is "
           "slow only where its base is in another state may have a third one: look at its iterations."),
    Reason("undecided-by-baseline", "The baseline's visits exclude neither a regression of must_catch size nor a "
           "slowdown within ignorable: they are too far apart.",
           "Measure both builds in pairs, which the spread between visits does not reach: perfgate run SCENARIO "
           "--base ... --head ... Further visits narrow it slowly; the line of the baseline says how many."),
    Reason("undecided-unpaired", "Two sides that were not measured in pairs exclude neither a regression of must_catch "
           "size nor a slowdown within ignorable.",
           "Measure both builds in pairs: perfgate run SCENARIO --base ... --head ... Or measure each side again with "
           "more trials (measure.looks), or widen the margins to what these figures can show."),
    Reason("too-few-pairs", "No look has been reached, so nothing can be decided.",
           "Measure at least as many pairs as the first look asks for."),
    Reason("quick-run", "--quick measures one trial a subject: a look at the numbers, never a verdict.",
           "Leave out --quick, or --preset quick, for a verdict."),
    Reason("running-server", "A server that ran already is one replicate, however often it is measured: nobody knows "
           "how its next start would differ, nor which build it is. What it shows is printed and never blocks.",
           "Have perfgate start the server: --base python=..., or engine.command in the scenario."),
    Reason("order-unknown", "Which side of each pair ran first is not known, or one side did more often or earlier, so "
           "that a drift, or the place in a pair, is not told from a difference of the builds. That blocks nothing, "
           "and passes only where the drift that both sides show could not hide must_catch.",
           "Add a column order with the place of each trial in its pair, 1 or 2; or say --order randomised where a "
           "coin decided it for each pair. Where one side always ran first, measure again in both orders, as perfgate "
           "run does."),
    Reason("advisory-unpaired", "The trials compared were not taken in pairs on one machine in one visit, so drift "
           "between them counts as a difference; the verdict is what the same figures would mean if it did not.",
           "Measure both builds in one run: perfgate run SCENARIO --base ... --head ..."),
    Reason("would-regress", "The visits of the baseline say that this gate regressed. That blocks nothing by itself: "
           "few visits do not show how far skewed visits, outliers or cards reach, and by them up to 11 % of runs at "
           "ignorable would be blocked. Pairs with the build that was promoted last decide, on fresh data alone.",
           "Measure pairs: perfgate run SCENARIO --base ... --head ... Beside --against baseline they are taken at "
           "once where --base or [subjects.base] names that build, or it was built of a commit, and --budget allows."),
    Reason("advisory-few-visits", "The baseline has too few visits for a pass: one more visit may differ much from so "
           "few by chance. The verdict is what the same figures would mean otherwise.",
           "Promote further visits of the same build (perfgate baseline promote RUN); from eight on a gate can pass."),
    Reason("anchor-unknown", "The head was measured beside an anchor that no visit of the baseline was measured "
           "beside, so times were compared, which differ by machine and day.",
           "Promote this run, or measure the build of the baseline beside this anchor and promote that: from then on "
           "ratios are compared."),
    Reason("anchor-far", "Head and anchor differ by more than 5 %. What a machine does to one it may then do less to "
           "the other, so that their ratio does not travel as well.",
           "Name a newer anchor in [subjects.anchor]; the first visit beside it links it to the visits before."),
    Reason("no-baseline", "There is no stored baseline for this cell or gate, so there is nothing to compare with.",
           "Make this run the first one: perfgate baseline promote RUN --reason '...'. A gate that is newer than the "
           "baseline's visits gets its values with the next promotion."),
    Reason("counter-without-base", "A condition compares a counter with the base, but no base was counted: the "
           "stored baseline began without counted trials, or with an earlier version, which kept none.",
           "Count both builds in one run: perfgate run SCENARIO --base ... --head ...; or begin the baseline anew: "
           "perfgate baseline promote RUN --anew --reason '...'. Bounds like '<= 0' are checked without a base, too."),
    Reason("baseline-broken", "A baseline's file is not a whole lineage: an entry was changed, dropped, added or "
           "moved, or a merge was left unfinished.",
           "Restore the file from its repository's history, then promote the run again; entries are never edited. To "
           "remove a baseline, delete its file in a commit of its own."),
    Reason("no-counterpart", "Only one subject was measured, so there is nothing to compare it with.",
           "Name the other side with --base or --head, or compare two records: perfgate compare A B."),
    Reason("different-cells", "The two sides hold different cells: model, engine arguments, workload or measurement "
           "differ; of results of another tool what was asked for, or how many tokens requests had.",
           "Compare records of the same scenario at the same cell_id, or results that were asked for the same; a "
           "baseline of the cell as it is now begins with perfgate baseline promote RUN --reason '...'."),
    Reason("different-machines", "The machines differ in something that decides performance.",
           "Measure both on one machine, or compare records of the same machine class; each class has baselines of "
           "its own."),
    Reason("clocks-differ", "The median SM clocks of the two sides differ by more than 1 %, and by more than chance "
           "explains, so a difference in time may be one in clocks. A head that is slower is blocked all the same "
           "where its clocks are the higher ones, or where the order of each pair was drawn: there its clocks are its "
           "own doing.",
           "Lock the clocks (clocks: {mode: lock, sm_mhz: ...}), or find why one side runs at another clock: more "
           "power, more heat."),
    Reason("no-common-state", "The machine had two states, and no state was seen on both sides.",
           "Take more pairs (perfgate run --resume RUN --more 4), beside an anchor a further run; find what the state "
           "is (docs/states.md)."),
    Reason("slow-state-leans", "Where the two trials of a pair differ in how long they were in the slow state, it is "
           "the head so often that chance is a poor explanation, and not often enough to block it.",
           "Take more pairs (perfgate run --resume RUN --more 4): from how many in which only the head is slow "
           "it blocks is said beside the states, and an even count passes. Beside an anchor measure pairs with the "
           "base instead."),
    Reason("pairs-disagree", "The median of the head's pairs with its anchor would decide, and too many pairs speak "
           "against it: a GPU that changes its state between two trials does that, where no probe tells the state.",
           "Measure the head in pairs with the base (perfgate run --base ... --head ...), as many as that takes."),
    Reason("unplaced-trials", "The machine had two states, and a trial with too little on either level was compared "
           "with nothing. Of a window of a server only what both trials of a pair took in one state is compared.",
           "Look at that trial's iterations: a head that is slow now and then has a third level. Else measure again."),
    # --- cautions
    Reason("slower-than-ignorable", "The gate passed, but the estimate is above the ignorable margin.",
           "Look at the estimate: a regression of must_catch size is excluded, a smaller one is likely."),
    Reason("below-floor", "The slowdown is established, but smaller than the gate's absolute floor.",
           "Nothing, if the floor is intended; otherwise lower it."),
    Reason("below-resolution", "The pairs differ by less than one step of what they were measured with: the clock that "
           "stamps kernels, or the last digit that a CSV has. A change smaller than that step is not seen, so the "
           "gate's bounds are a step further out.",
           "Nothing, if the margins are much wider than the step. Otherwise measure something longer: a role with more "
           "kernel time, or the whole step; in a CSV write more digits."),
    Reason("counted-by-sign", "The metric was 0 in some trials, which has no ratio, so pairs are counted: a head that "
           "is worse by more than ignorable in enough of them blocks, and passes where every one is within must_catch.",
           "Read both sides' values. A floor: in the metric's unit says which changes of a small count do not matter."),
    Reason("estimates-disagree", "The mean of the pairs and their Hodges-Lehmann estimate differ by more than half the "
           "distance between the margins: some pairs are far from the others.",
           "Look at the pairs in the record for a disturbed trial or for restarts that split in modes."),
    Reason("mode-share", "The restarts of one side fall in two groups. A head that is slow only in some restarts can "
           "pass: at a mean of must_catch size, slow in 30 % of restarts, in about one of four runs.",
           "Compare the share of slow restarts on both sides; take more pairs."),
    Reason("within-states", "The machine had two states, and the gates passed within each, or within the one that the "
           "text names: of a state that fewer than three pairs have in common nothing is said. A head that makes the "
           "slow one come more often is blocked once enough pairs show it; how much it could cost until then is said.",
           "Nothing, if the gap between the states is not the build's and the state named is the one that counts. "
           "Otherwise take more pairs: from how many in which only the head is slow it blocks is said beside the "
           "states. Beside an anchor measure pairs with the base instead."),
    Reason("bounded-pairs", "The machine had two states, and some pairs have none in common. The change and its bounds "
           "are of the others. Until these are enough to block, all may block together, less what the states may add.",
           "Nothing: what is blocked so is slower by more than the gap of the median step, and its bound is of all "
           "pairs. More pairs with a state in common tell by how much."),
    Reason("waits-lean", "Warm-up went on until the GPU was fast, for one build in many more pairs than for the other. "
           "What is judged was taken after it: that engines of one build begin in the slow state shows nowhere else.",
           "Look at what the build does when it starts; PERFGATE_PROBE=0 in the engine's environment measures without "
           "waiting."),
    Reason("states-ignored", "The machine had two states, no further apart than each gate that follows them ignores, "
           "so that all was compared as it is. A head that is slow more often is slower on average, which means "
           "show and medians may not.",
           "Nothing, as the margins are; a gate that shall see so little needs a smaller ignorable."),
    Reason("probe-apart", "The probe, a fixed piece of work beside each iteration, is a tenth slower beside all trials "
           "of one build than beside any of the other. Either that build moves the probe, or its GPU is in the slow "
           "state throughout; nobody can tell which, so all was compared as it is.",
           "Trace both builds: the slow state lengthens the gaps between kernels, and no kernel."),
    Reason("probe-levels", "The probe, a fixed piece of work beside each iteration, reads three levels or more beside "
           "one build, and a GPU is taken to have two states. Trials on a further level are compared with none, or all "
           "are compared as they are and spread by what the levels are apart: few runs are decided so.",
           "Measure on another GPU. Or find what makes the level: another process on this GPU (MPS, MIG, a video "
           "engine), or a clock that wanders (clocks: {mode: lock, sm_mhz: ...}); research/gpu_states.py shows "
           "levels without an engine, and docs/states.md says which two are known."),
    Reason("iterations-uneven", "An iteration took more than twice the median of its trial, though all do equal work: "
           "something else used the machine, or the engine compiled late. Percentiles and throughput include it.",
           "Find out what else runs there; give the scenario more warmup_iterations, and on the CPU do not bind "
           "threads to cores that others use."),
    Reason("steps-stall", "Decode steps that take half as long again as the median, or longer, cost both builds one "
           "per cent of their time or more. Means and throughput spread by that, medians do not.",
           "Stop what starts processes beside the run: on a virtual machine even a shell loop around sleep, date or "
           "nvidia-smi holds all others up each time. If nothing does, the machine's host or both builds do it: "
           "measure on another, give trials more iterations, or gate medians."),
    Reason("trials-uneven", "A trial was slower throughout than 1.5 times the same side's other trials, though all do "
           "equal work: the machine was throttled or asleep, or something else used it. The trial still counts.",
           "Find out what the machine did then (the trial's t0_utc in the record); if it is more than one trial, see "
           "mode-share. Measure again on an idle machine."),
    Reason("outputs-differ", "The two sides generated different tokens for the same prompts: faster because wrong is "
           "not faster.",
           "Explain the difference (numerics, kernels, sampling) before trusting the times."),
    Reason("outputs-unstable", "One side generated different tokens for the same prompts in different trials.",
           "Numerics depend on the batch or on a race; outputs-differ cannot be judged then."),
    Reason("weights-apart", "On a GPU the engine loaded more than 1.5 times the bytes of weights that config.json is "
           "counted as, or less than two thirds: it seems to run another model, such as one that quantization_config "
           "does not reach. There is no floor then.",
           "Look in engine.log for what was loaded. GPTQ without its weights' files needs "
           "modules_in_block_to_quantize: vLLM quantises no module that nothing names."),
    Reason("multi-token-deliveries", "Deliveries carried more than one token a request (speculative decoding); the gap "
           "was divided by the tokens.",
           "Keep acceptance comparable on both sides; ITL then includes it."),
    Reason("not-steady", "The time per token of a server's requests still changed when measuring began: more warm-up "
           "than declared did not bring it to rest (docs/servers.md).",
           "Raise measure.warmup_iterations, or make windows longer. Where requests pile up, lower the rate."),
    Reason("requests-sent-twice", "A server closed a connection on a request that had been sent, without a word, and "
           "answered on a second one. The time counts from schedule, with the first attempt in it.",
           "Nothing for one now and then: an idle connection may end as a request comes. Else read the server's log."),
    Reason("rate-lowered", "A server refused requests (status 429 or 503) in a measured window at the rate that was "
           "found for it, and what is shown beside max_rate was measured at a lower one.",
           "Longer windows find a rate that holds for longer: raise requests, or duration."),
    Reason("counted-otherwise", "A server told the tokens of its events by other means on one side: by their ids, by "
           "usage with each event, or by nothing, so that each event counts as one.",
           "Find out why the head's API tells less, or more, than the base's: times between tokens are comparable only "
           "where both are counted alike."),
    Reason("client-shares-cores", "perfgate's own client, which sends requests to a server and times the answers, had "
           "no core of its own: fewer than four can be used, or clients of other runs had half of them.",
           "Measure where four cores or more can be used, and fewer servers at once. A client that is too late for it "
           "fails the trial (client-late)."),
    Reason("low-priority", "The engine had a niceness above 0: whatever else wanted a core went first, and its times "
           "may include that.",
           "Start perfgate without nice. Ray gives its workers 15, which only root may lower: start each node with "
           "RAY_worker_niceness=0 ray start ... (docs/ray.md)."),
    Reason("preemptions-unknown", "This vLLM does not show preemptions, so a preempted trial would not be noticed.",
           "Give the KV cache ample room."),
    Reason("no-probe", "Iterations of a timed trial have no readings of the probe that tells in which state a GPU is.",
           "Look for 'no probe' in the trial's engine.log. Unset PERFGATE_PROBE=0 where a subject or scenario sets it; "
           "an engine whose ranks are in processes out of reach cannot be probed. The trial counts as without a "
           "probe."),
    Reason("dropped-pairs", "Pairs were dropped for a failed trial and replaced.",
           "A build that fails now and then is not healthy. If all failures are on one side, the remaining pairs "
           "show that side at its best."),
    Reason("subject-changed", "Files of a subject that an import can reach changed while it was measured, or since an "
           "earlier visit, so its trials are of two builds, and what it was measured with does not count. As a "
           "caution: versions of its packages differ between trials or between machines.",
           "Let nobody edit or install what is measured, copy it first, or name a commit (ref=), which perfgate "
           "builds apart; then measure anew. What counts as a file of a subject: docs/configuration.md."),
    Reason("subject-unknown", "So much of a subject's files had been touched before a trial, or so much is there, that "
           "they were not read; or another file than a module came into a package of it. Whether the subject changed "
           "while it was measured is not known.",
           "Let nobody touch what is measured, and tools write elsewhere; name a smaller path=, or the folder that "
           "holds the package alone."),
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
