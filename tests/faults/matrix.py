#!/usr/bin/env python3
"""Injected faults against a build of epa2a.

    matrix.py BUILD [--algorithm NAME] [--faults N] [--seed S] [--seconds T] [--slack T]
              [--slow F] [--only TEXT] [--mutant NAME] [--first] [--list] [--verbose]

Each fault starts a run, does one bad thing to it from outside (or has it planted by fault:), and
checks: the time until all ended, exit codes, the message (rank, process and stage),
the JSON document, and leftovers: processes, /dev/shm, System V segments, temporary files.
Last line: `N faults, M violations`. Exit code 1 if M > 0, 77 if nothing could be run.

The first faults are one for each kind and signal: faults of fork and env are in the first 60, faults of mpi in the first 100.
A message that names a waiting time is judged by it: the time is at most 1.2 times the limit of the run, and the run ends
within 1.2 times the time in the message and the time to end all ranks. --mutant starts runs with a defect that the matrix
must report: `hup` (SIGHUP is ignored), `heartbeat` (no heartbeat), `limit` (time limits are three times too long).

Leftovers that documents of epa2a, UCX or Open MPI mention are reported as `known` and not counted. So is an mpirun that
waits for itself or ends by a signal after all of epa2a has ended: Open MPI 4.1 does that with any MPI program of which a rank
is killed in MPI_Init (PMIx_server_finalize waits for a mutex that is never given back).

A fault that is a violation while no thread of this script gets a core for more than half a second, or while others have more than
a quarter of its cores' time, is tried again, five times at most and when others have less, if they do within half a minute: a
rank that cannot run for longer than the time limit of its peers is lost to them.

Needs: Linux, Python 3; a faulty run takes 1 to 8 s. The seed is that of
the day unless it is given; after --seconds no further fault is begun. As root it has a /dev/shm, System V segments and
a network of its own: leftovers of other programs are not counted.
It ends only processes with its own mark in their environment."""
import argparse, collections, ctypes, functools, json, os, random, re, resource, shutil, signal, subprocess, sys, tempfile, threading, time
ap = argparse.ArgumentParser()
ap.add_argument('build')
ap.add_argument('--algorithm', default='ll_v2', choices=['ll_v2', 'll_v1', 'token_flag', 'fused', 'ag_gemm_2d'])
ap.add_argument('--faults', type=int, default=320)
ap.add_argument('--seed', type=int, default=int(time.strftime('%Y%m%d')))
ap.add_argument('--only', default='')
ap.add_argument('--launchers', default='fork,env,mpi', help='without a hash (OpenSSL or AF_ALG) ranks run by fork alone')
ap.add_argument('--mutant', choices=['hup', 'heartbeat', 'limit'])
ap.add_argument('--list', action='store_true')
ap.add_argument('--verbose', action='store_true')
ap.add_argument('--first', action='store_true', help='end with the first violation, and do not try it again')
ap.add_argument('--seconds', type=float, default=10 ** 9)
ap.add_argument('--slack', type=float, default=5.0, help='seconds beyond what is promised')
ap.add_argument('--slow', type=float, default=1.0, help='factor of all time limits of the runs, for a machine that does other things')
A = ap.parse_args()
EPA = os.path.abspath(os.path.join(A.build, 'src/epa2a'))
if not os.access(EPA, os.X_OK):
    sys.exit(f'{EPA} is not there')
ALONE = ['unshare', '--mount', '--ipc', '--net', 'sh', '-c', 'mount -t tmpfs -o mode=1777 none /dev/shm && ip link set lo up && exec "$@"', 'sh']
if 'EPA_FM_ALONE' not in os.environ and os.geteuid() == 0 and shutil.which('unshare') and shutil.which('ip'):
    if subprocess.run(ALONE + ['true'], capture_output=True).returncode == 0:
        os.execvpe(ALONE[0], ALONE + [sys.executable] + sys.argv, dict(os.environ, EPA_FM_ALONE='1'))
for s in signal.SIGINT, signal.SIGQUIT, signal.SIGHUP:  # a shell's background job ignores them, and epa2a and mpirun would, too
    if signal.getsignal(s) == signal.SIG_IGN:
        signal.signal(s, signal.default_int_handler if s == signal.SIGINT else signal.SIG_DFL)
R = random.Random(A.seed)
WORK = tempfile.mkdtemp(prefix='fm-', dir=tempfile.gettempdir())
if 'EPA_FM_ALONE' in os.environ:  # in memory: a disk that stalls for seconds holds up whoever writes a result
    subprocess.run(['mount', '-t', 'tmpfs', 'none', WORK])
MARK = f'EPA_FM_MARK={os.getpid()}.{int(time.time())}'
TIMEOUT = 1.5 * A.slow
HEART = 2.0 * A.slow
START = 8 * A.slow
MOE = 'moe: {max_tokens: 16, hidden: 512, experts: 24, topk: 4, dtype: bf16}'
PROBLEM, STAGES = {
    'fused': (MOE + '\nexpert: {kind: mlp, ffn: 256}', ['layer']),
    'ag_gemm_2d': ('gemm: {m: 192, n: 384, k: 256, dtype: bf16}', ['ag_gemm']),
    'token_flag': (MOE, ['dispatch_recv', 'combine_recv']),
}.get(A.algorithm, (MOE, ['dispatch', 'combine']))
YAML = f"""version: 1
name: faults
ranks: 4
timeout: {int(TIMEOUT * (3 if A.mutant == 'limit' else 1) * 1000)}ms
transport: shm
algorithm: {{name: {A.algorithm}}}
{PROBLEM}
verify: {{iterations: 1000000}}
run: {{iterations: 1000000}}
bench: {{warmup: 0, iterations: 1000000}}
"""
FILE = os.path.join(WORK, 'faults.yaml')
open(FILE, 'w').write(YAML)


say = functools.partial(print, flush=True)
STALL = 0.5
STALLED = {core: 0.0 for core in os.sched_getaffinity(0)}  # seconds in which a thread of ours got no turn on this core
TURN = dict.fromkeys(STALLED, time.monotonic())  # when it last got one


def watch_core(core):
    os.sched_setaffinity(0, [core])
    while True:
        time.sleep(0.02)
        gap = time.monotonic() - TURN[core]
        STALLED[core] += gap if gap > STALL else 0
        TURN[core] += gap


def stalled():
    now = time.monotonic()
    return max(STALLED[core] + (now - TURN[core] if now - TURN[core] > STALL else 0) for core in STALLED)


OTHERS = 0.25
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: what its parent has left is reaped here, and its time is known


def time_of_others():
    """Returns the seconds that all cores spent on other work than this script and its children, including stolen time."""
    busy = open('/proc/stat').readline().split()
    mine = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(int(busy[i]) for i in (1, 2, 3, 6, 7, 8)) / os.sysconf('SC_CLK_TCK') - sum(m.ru_utime + m.ru_stime for m in mine)


def share_of_others(since, theirs):
    return (time_of_others() - theirs) / max(time.monotonic() - since, 0.01) / os.cpu_count()


def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


TRANSPORTS = {'shm': ['transport=shm'], 'ucx-tcp': ['transport=ucx', 'transport.tls=tcp'], 'ucx-shm': ['transport=ucx', 'transport.tls=posix,self'], 'ucx-auto': ['transport=ucx']}
have = subprocess.run([EPA, 'list'], capture_output=True, text=True).stdout
if not re.search('^  ucx ', have, re.M):
    TRANSPORTS = {'shm': TRANSPORTS['shm']}
LAUNCH = [launcher for launcher in ('fork', 'env') if launcher in A.launchers.split(',')]
if 'mpi' in A.launchers.split(',') and re.search('^  mpi ', have, re.M) and shutil.which('mpirun'):
    LAUNCH.append('mpi')


def has(pid, variable):
    try:
        return variable.encode() in open(f'/proc/{pid}/environ', 'rb').read().split(b'\x00')
    except OSError:
        return False


def procs():
    """{pid: parent} of epa2a processes of this script, zombies left out."""
    out = {}
    for pid in os.listdir('/proc'):
        try:
            found = pid.isdigit() and has(pid, MARK) and re.match(r'\d+ \(epa2a\) [^ZX] (\d+)', open(f'/proc/{pid}/stat').read())
        except OSError:
            continue
        if found:
            out[int(pid)] = int(found[1])
    return out


def parents(p):
    """Processes without a parent in p: commands with launcher fork, ranks with other launchers."""
    return sorted((x for x in p if p[x] not in p))


def kill(pid, sig):
    try:
        return pid != 0 and os.kill(pid, sig) is None
    except OSError:
        return False


def where(pid):
    """Its state and where in the kernel it is, as far as that may be read."""
    try:
        state = re.search('State:\\s*(.*)', open(f'/proc/{pid}/status').read())[1]
        return state + ' in ' + ' < '.join(re.findall('\\] (\\w+)', open(f'/proc/{pid}/stack').read())[:4])
    except OSError as x:
        return x.strerror


def sysv():
    try:
        return {l.split()[1] for l in open('/proc/sysvipc/shm').readlines()[1:] if l.split()[6] == '0'}  # nobody has it attached
    except OSError:
        return set()


def ignore_hangup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Run:
    """One command, or one for each rank (env)."""

    def __init__(self, launch, transport, n, verb, extra=()):
        self.launch, self.transport, self.n, self.verb = (launch, transport, n, verb)
        self.dir = tempfile.mkdtemp(prefix='run-', dir=WORK)
        self.tmp = os.path.join(self.dir, 'tmp')
        os.mkdir(self.tmp)
        self.json = os.path.join(self.dir, 'out.json')
        self.before = (set(os.listdir('/dev/shm')), sysv())
        self.sets = TRANSPORTS[transport] + [f'ranks={n}', *extra]
        if launch != 'fork':
            heart = 600 if A.mutant == 'heartbeat' else HEART * (3 if A.mutant == 'limit' else 1)
            self.sets += [f'launcher.heartbeat={int(heart * 1000)}ms', f'launcher.start={int(START * 1000)}ms']
        args = [EPA, verb, FILE, '--json', self.json]
        for s in [f'launcher.name={launch}'] + self.sets:
            args += ['--set', s]
        env = {k: v for k, v in os.environ.items() if not re.match('SLURM|OMPI_(?!MCA_plm|ALLOW_RUN)|PMI|PMIX|TORCHELASTIC|EPA2A|RANK$|WORLD_SIZE$', k)}
        mark, env['TMPDIR'] = MARK.split('='), self.tmp
        env[mark[0]] = mark[1]
        self.p, self.err = ([], [])
        port = 15000 + R.randrange(15000)
        for r in range(n if launch == 'env' else 0):
            self.start(args, dict(env, RANK=str(r), WORLD_SIZE=str(n), LOCAL_RANK=str(r), LOCAL_WORLD_SIZE=str(n), MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port)), r)
        mpirun = ['mpirun', '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none', '-n', str(n), '-x', mark[0]]
        if launch != 'env':
            self.start((mpirun if launch == 'mpi' else []) + args, env, 0)
        self.t0 = self.since = time.time()
        self.took = None  # seconds until the run ended, where more is done to it later

    def start(self, args, env, i):
        e = open(os.path.join(self.dir, f'err.{i}'), 'wb')
        self.err.append(e.name)
        self.p.append(subprocess.Popen(args, env=env, stdin=subprocess.DEVNULL, stdout=open(os.path.join(self.dir, f'out.{i}'), 'wb'), stderr=e,
                                       preexec_fn=ignore_hangup if A.mutant == 'hup' else None))

    def alive(self):
        return any((p.poll() is None for p in self.p))

    def said(self):
        return ''.join((open(e, errors='replace').read() for e in self.err))

    def parent_of(self, r):
        """The process that handles the signals of users for rank r."""
        return self.p[0].pid if self.launch == 'fork' else self.rank_of(r)

    def rank_of(self, r):
        if self.launch == 'env':
            return self.p[r].pid
        if self.launch == 'mpi':
            return next((a for a in procs() if has(a, f'OMPI_COMM_WORLD_RANK={r}')), 0)
        k = self.ranks()
        return k[r] if len(k) > r else 0

    def ranks(self):
        p = procs()
        return sorted(x for x in p if self.launch != 'fork' or p[x] == self.p[0].pid)

    def others_than(self, r):
        """Indexes of the commands of other ranks; None: there is one command, whose code counts."""
        return [i for i in range(self.n) if i != r] if self.launch == 'env' else None

    def until(self, what, limit=15 * A.slow):
        """'ranks': all are there; 'under way': the first iterations are done."""
        end = time.time() + limit
        while time.time() < end and self.alive():
            if len(self.ranks()) >= self.n:
                if what == 'ranks':
                    return True
                s = subprocess.run([EPA, 'status', '--json', '-', str((parents(procs()) or [0])[0])], capture_output=True, text=True, timeout=10)
                if any(int(i) >= 2 for i in re.findall('"iteration":\\s*(\\d+)', s.stdout)):
                    return True
            time.sleep(0.004 if what == 'ranks' else 0.03)
        return False

    def wait(self, limit):
        end = time.time() + limit
        while self.alive() and time.time() < end:
            time.sleep(0.004)
        return not self.alive()

    def clean(self):
        for _ in range(40):
            p = procs()
            if not p and (not self.alive()):
                break
            for x in p:
                kill(x, signal.SIGKILL)
            for x in self.p:
                if x.poll() is None:
                    x.kill()
            time.sleep(0.02)
        for x in self.p:
            x.wait()
bad = []
leftovers = set()  # removed in the end: until then they may be of somebody else who makes them now
known = []
count = 0
STAGE = '(set-up|between stages|dispatch|combine|layer|gemm|gather|warm|inputs|check|report|barrier|before|after)'


MARGIN = 1.2  # of a time limit
END = 2.0 * A.slow  # seconds in which all processes of a run end after a rank is lost


def late_messages(said, took):
    """Returns the violations of waiting times in messages. `took`: seconds from the fault to the end of the run; None: unknown."""
    out = []
    for words, limit in (('timeout after', max(TIMEOUT, 3) if 'set-up' in said else TIMEOUT), ('it sent no message for', HEART)):
        times = [float(t) / (1000 if unit == 'ms' else 1) for t, unit in re.findall(words + r' ([\d.]+) (m?s)\b', said)]
        if times and max(times) > MARGIN * limit:
            out.append(f'{words} {max(times):g} s, and the limit is {limit:g} s')
        if times and took is not None and took > MARGIN * max(times) + END:
            out.append(f'{words} {max(times):g} s, but the run took {took:.1f} s')
    return out


def judge(name, run, limit, want, who=None, stage=False, text=None, ended=True, json_must=True, only_codes_of=None, parent_killed=False, timed=False):
    """Everything that is promised of one fault. `who`: (rank, pid) the sentence must name."""
    v = []
    ms = int((time.time() - run.since) * 1000)
    codes = [p.poll() for p in run.p]
    said = run.said()
    if run.launch == 'mpi':  # codes[0] is mpirun's own: what becomes of it once all of epa2a has ended is not ours
        if not ended and not procs():
            known.append((name, 'mpirun stays after all of epa2a has ended'))
            ended, codes = True, [next(iter(want))]
        elif ended and codes[0] is not None and codes[0] < 0 and codes[0] not in want and not procs():
            known.append((name, f'mpirun ends by signal {-codes[0]}'))
            codes = [next(iter(want))]
    if not ended:
        v.append(f'did not end within {limit:.1f} s')
        try:
            a = parents(procs())
            v.append('status: ' + ' / '.join(subprocess.run([EPA, 'status', str(a[0])], capture_output=True, text=True, timeout=10).stdout.split('\n')[:6]) if a else 'nobody')
        except Exception as x:
            v.append(f'status itself: {x!r}')
        v += [f'process {p}: {where(p)}' for p in sorted(procs())]
    else:
        for i in range(len(codes)) if only_codes_of is None else only_codes_of:
            if codes[i] not in want:
                v.append(f"exit code {codes[i]} of {i if len(codes) > 1 else 'it'}, not {sorted(want)}")
    end = time.time() + 1.5
    while (left := procs()) and time.time() < end:
        time.sleep(0.02)
    if ended and left:
        v.append(f'{len(left)} processes left behind')
    run.clean()
    if ended:
        v += late_messages(said, (run.took or ms / 1000) if timed else None)
    died = [c for c in codes if c in (4, 5)]
    if ended and died and (who is not None):
        r, pid = who
        if pid and (not re.search(f'\\b(rank {r}\\b)', said)):
            v.append(f'no sentence names rank {r}')
        if pid and 5 in codes and (run.launch != 'mpi') and (not re.search(f'pid {pid}\\b', said)) and (not re.search(f'rank {r} [^\\n]*(is gone|it sent no message)', said)):
            v.append(f'no sentence names process {pid}')
    if ended and died and stage and (not re.search(STAGE, said)):
        v.append('no sentence names a stage')
    if ended and any((c not in (0, -9, None) for c in codes)) and (not said.strip()) and (not parent_killed):
        v.append('no word at all')
    if text and ended and died and (not re.search(text, said)):
        v.append(f'nobody says /{text}/')
    if re.search('error: [;:,]', said):
        v.append('a sentence without its beginning')
    if re.search('Sanitizer|runtime error:|corrupt|double free|stack smashing', said):
        v.append('the run reports damage to memory')
    if os.path.exists(run.json):
        try:
            assert json.load(open(run.json))['results'], 'no results'
        except Exception as x:
            v.append(f'the JSON is not valid: {x!r}')
    elif json_must and ended and any((c in (4, 5, 0, 1, 130, 143) for c in codes[:1])):
        v.append('there is no JSON document')
    theirs = {'/dev/shm': 'ucx_shm_posix|vader_|osc_|open_mpi|sm_segment', run.tmp: '.*(ompi|prted|pmix|openmpi)'}
    for folder in theirs:
        for f in sorted(set(os.listdir(folder)) - run.before[0]):
            path = os.path.join(folder, f)
            try:
                if os.stat(path).st_mtime < run.t0 - 5:
                    continue
            except OSError:
                continue
            if re.match(theirs[folder], f):
                known.append((name, 'files of UCX or Open MPI in ' + ('TMPDIR' if folder == run.tmp else folder)))
            else:
                v.append(f'left in {folder}: {f}')
            leftovers.add(path)
    if seg := sysv() - run.before[1]:
        known.append((name, f'{len(seg)} System V segments')) if 'ucx' in run.transport else v.append('System V segments left')
    extra = [f for f in os.listdir(run.dir) if not re.match('(out|err)\\.\\d+$|out\\.json$|tmp$', f)]
    if extra:
        known.append((name, 'a .tmp of a killed writer')) if parent_killed and all((f.endswith('.tmp') for f in extra)) else v.append(f'left beside the result: {extra}')
    global count
    count += 1
    k = codes[0] if len(codes) == 1 else '/'.join(sorted({str(c) for c in codes}))
    if v:
        bad.append((name, v))
        say(f"VIOLATION {name}: {'; '.join(v)} (codes {codes}, {ms} ms)")
        lines = [l for l in said.split('\n') if l.strip()]
        for l in [l for l in lines if 'error' in l and 'UCX' not in l][:4] or lines[:6]:
            say('      | ' + l[:300])
        say('      repro: sets ' + ' '.join(run.sets) + f' verb {run.verb}')
    elif A.verbose:
        say(f'ok {name}: code {k}, {ms} ms')
    shutil.rmtree(run.dir, ignore_errors=True)
KILLS = [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL]


ENDS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
PARENT_SIGNALS = {'fork': [*KILLS[:3], *ENDS, signal.SIGQUIT], 'env': ENDS, 'mpi': [signal.SIGTERM]}


ANY = set(range(1, 256))  # of mpirun, which has a code of its own for a killed process


def limit_of(launch, more=0):
    return TIMEOUT + A.slack + (HEART if launch != 'fork' else 0) + more


def fault(launch, transport, n, verb, what, when, strike, sets=(), nap=None):
    """A fault by its name, and what does it: strike(run, r) once the run is `when`, and a while later; it returns what is
    expected of the run, for judge()."""
    name = f'{launch} {transport} {n} {verb} | {what}'

    def go():
        run = Run(launch, transport, n, verb, sets)
        if when != 'at start' and not run.until('ranks' if when == 'in set-up' else 'under way'):
            return judge(name + ' (never under way)', run, 9, {'under way'})
        time.sleep(R.random() * (0.2 if when == 'under way' else 0.03) if nap is None else nap)
        run.since = time.time()
        told = {'limit': limit_of(launch), **strike(run, R.randrange(n))}
        if 'ended' not in told:
            told['ended'] = run.wait(told['limit'])
        judge(name, run, **told)
    return (name, go)


def f_rank(launch, transport, n, verb, when, sig):
    """A rank's process gets a deadly signal. A started process reports a signal of its rank itself, but not SIGKILL, and
    no signal before the launch."""
    early = launch == 'mpi' and when != 'under way'

    def strike(run, r):
        pid = run.rank_of(r)
        kill(pid, sig)
        gone = launch != 'fork' and (sig == signal.SIGKILL or when != 'under way')
        return dict(want=ANY if launch == 'mpi' and (early or gone) else {5} if when == 'under way' or launch == 'fork' else {4, 5}, who=None if early else (r, pid),
                    stage=when == 'under way' and launch == 'fork', json_must=not early and not (gone and r == 0), parent_killed=early,
                    only_codes_of=run.others_than(r) if gone else None, limit=limit_of(launch, START if gone and when != 'under way' else 0))
    nap = 0 if when == 'at start' else R.random() * 0.25 if when == 'in set-up' and launch != 'fork' else None
    return fault(launch, transport, n, verb, f'{sig.name} of a rank {when}', 'in set-up' if when == 'at start' else when, strike, nap=nap)


def f_stop(launch, transport, n, verb, when):
    """A rank's process is stopped and stays so."""
    def strike(run, r):
        pid, end = run.rank_of(r), time.time() + 10
        while not pid and run.alive() and time.time() < end:
            pid = run.rank_of(r)
        run.since = time.time()
        kill(pid, signal.SIGSTOP)
        return dict(want={4} | ({5} if launch != 'fork' and r == 0 else set()) | ({5, 137} if launch == 'mpi' else set()), who=(r, pid), limit=limit_of(launch),
                    timed=when == 'under way' and launch == 'fork', json_must=launch == 'fork', only_codes_of=run.others_than(r))
    return fault(launch, transport, n, verb, f'SIGSTOP of a rank {when}', when, strike, nap=0 if when == 'at start' else None)


def f_pause(launch, transport, n, verb, whom):
    """Stopped for less than the time limit, as by Ctrl-Z, then continued: goes on; then SIGINT ends it well."""
    def strike(run, r):
        pid = run.rank_of(r) if whom == 'a rank' else run.p[0].pid
        kill(pid, signal.SIGSTOP)
        time.sleep(0.4 if whom == 'a rank' else 1.0)
        kill(pid, signal.SIGCONT)
        time.sleep(0.5)
        if not run.alive():
            return dict(want={'goes on'}, ended=True)
        run.since = time.time()
        kill(run.parent_of(0), signal.SIGINT)
        return dict(want={130}, limit=4 * A.slow + A.slack)
    return fault(launch, transport, n, verb, f'SIGSTOP and SIGCONT of {whom}', 'under way', strike, nap=0)


def f_parent(launch, transport, n, verb, when, sig):
    """The command, or the process of a rank, gets a signal of a user."""
    code = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 143}.get(sig)
    soft, late = code is not None, when == 'under way'

    def strike(run, r):
        kill(run.parent_of(r), sig)
        told = dict(limit=limit_of(launch, START if launch != 'fork' and not late else 0), json_must=False, parent_killed=True)
        if launch == 'fork':
            return dict(told, want={-sig} | ({code} if soft else set()) | ({code, -sig} if when == 'at start' else set()),
                        json_must=soft and late, parent_killed=not soft or when == 'at start')
        if launch == 'mpi':
            return dict(told, want=ANY | {-sig})
        return dict(told, want={code} | ({4, 5} if not late else set()), only_codes_of=run.others_than(r))
    return fault(launch, transport, n, verb, f"{sig.name} of {'the command' if launch == 'fork' else 'a rank'} {when}", when, strike)


def f_silent(launch, transport, n, verb):
    """A rank is stopped for longer than the heartbeat: the others do not wait for their time limit, and end it."""
    def strike(run, r):
        pid = run.rank_of(r)
        kill(pid, signal.SIGSTOP)
        return dict(want={5}, who=(r, pid), json_must=False, only_codes_of=run.others_than(r), text=f'rank {r} .*is gone: it sent no message')
    return fault(launch, transport, n, verb, 'SIGSTOP of a rank with a long time limit', 'under way', strike, ['timeout=200s'], 0)


def f_planted(launch, transport, n, verb, kind, stage, it):
    r = R.randrange(n)

    def strike(run, _):
        run.until('ranks')
        run.since = time.time()
        fork = launch == 'fork'
        return dict(want=({5} if kind == 'kill' else {4}) | ({5} if r == 0 and not fork else set()) | (ANY if launch == 'mpi' else set()),
                    who=(r, 1 if kind == 'stop' else 0), stage=fork, limit=limit_of(launch, 3 + (START if launch == 'mpi' else 0)),
                    json_must=fork, only_codes_of=run.others_than(r),
                    text=f'rank {r} .*(killed by signal 9|is gone|has lost)' if kind == 'kill' else f'rank {r}')
    plant = f'fault={{kind: {kind}, rank: {r}, iteration: {it}' + (f', stage: {stage}' if stage else '') + (', for: 60s' if kind == 'stop' else '') + '}'
    return fault(launch, transport, n, verb, f"planted {kind} in {stage or 'the first stage'} of iteration {it}", 'at start', strike, [plant], 0)


def f_anytime(launch, transport, n, verb, sig, target):
    """A finite run, hit at any time of its life: set-up, iterations, the check, the report."""
    its = {'shm': 3000, 'ucx-tcp': 60, 'ucx-shm': 1500, 'ucx-auto': 1500}[transport] // (4 if verb == 'verify' else 1) // (1 if MOE == PROBLEM else 4)
    key, sets = (launch, transport, n, verb), [f'{verb}.iterations={its}']

    def strike(run, r):
        if key not in whole:  # this run shows how long one takes, the next is hit
            run.wait(60 * A.slow)
            whole[key] = time.time() - run.t0
            return dict(want={0})
        time.sleep(R.random() * whole[key] * 1.1)
        run.since = time.time()
        if not kill(run.rank_of(r) if target == 'a rank' else run.parent_of(r), sig):  # not there yet, or no more: nothing is hit
            run.wait(60 * A.slow)
            return dict(want={0})
        want = {5, 0} | ({4} if launch != 'fork' else set()) if target == 'a rank' else {-sig, 0, 143, 130}
        return dict(want=want | (ANY if launch == 'mpi' else set()), limit=limit_of(launch, whole[key] + (START if launch != 'fork' else 0)),
                    json_must=target == 'a rank' and launch == 'fork', parent_killed=target != 'a rank' or launch != 'fork',
                    only_codes_of=run.others_than(r))
    name, go = fault(*key, f'{sig.name} of {target} at any time', 'at start', strike, sets, 0)
    return (name, lambda: [go() for _ in range(1 + (key not in whole))])


def f_mpirun(transport, n, verb, sig, when):
    def strike(run, _):
        run.p[0].send_signal(sig)
        limit = limit_of('mpi')
        ended, end = run.wait(limit), time.time() + limit
        while procs() and time.time() < end:
            time.sleep(0.05)
        return dict(want=ANY | {-sig}, ended=ended, json_must=False, parent_killed=True)
    return fault('mpi', transport, n, verb, f'{sig.name} of mpirun {when}', when, strike)


whole = {}


def pick():
    return (R.choice([2, 3, 4, 8]), R.choice(['bench', 'bench', 'verify', 'run']))


def plan_signals():
    """One fault for each kind and signal; faults of mpi are last."""
    deadly = list(dict.fromkeys(KILLS))
    out = []
    for launch in LAUNCH:
        fork, some = launch == 'fork', []

        def where():
            return launch, R.choice(list(TRANSPORTS)), *pick()

        def when(fork=fork):
            return R.choice(['at start', 'in set-up', 'under way'] if fork else ['in set-up', 'under way'])
        some += [f_rank(*where(), when(), s) for s in deadly]
        some += [f_parent(*where(), when(), s) for s in PARENT_SIGNALS[launch]]
        some += [f_stop(*where(), 'under way')]
        some += [f_planted(*where(), kind, R.choice(STAGES), R.choice([0, 1, 3])) for kind in ('kill', 'stop')]
        some += [f_anytime(*where(), s, 'a rank') for s in (signal.SIGKILL, signal.SIGSEGV)]
        some += [f_anytime(*where(), s, 'the command') for s in ([signal.SIGKILL, *ENDS] if fork else [])]
        some += [f_pause(*where(), whom) for whom in (['a rank', 'the command'] if fork else [])]
        some += [f_silent(*where())] if launch == 'env' else []
        some += [f_mpirun(*where()[1:], s, when()) for s in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)] if launch == 'mpi' else []
        out += some
        if launch != 'mpi':
            R.shuffle(out)
    return out


def plan(n):
    """A list of n faults, the same for a seed: each kind and signal once, then every kind in turn, so that any prefix is balanced."""
    out = plan_signals()
    kinds = []
    for t in TRANSPORTS:
        whens = ['at start', 'in set-up', 'under way']
        kinds += [lambda t=t, w=w: f_rank('fork', t, *pick(), w, R.choice(KILLS)) for w in whens + ['under way']]
        kinds += [lambda t=t, w=w: f_stop('fork', t, *pick(), w) for w in whens]
        kinds.append(lambda t=t: f_pause('fork', t, *pick(), 'a rank'))
        kinds += [lambda t=t, w=w: f_parent('fork', t, *pick(), w, R.choice(KILLS[:3] + [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])) for w in whens]
        kinds.append(lambda t=t: f_pause('fork', t, *pick(), 'the command'))
        kinds += [lambda t=t, s=s, k=k: f_planted('fork', t, *pick(), k, s, R.choice([0, 1, 7, 40] if MOE == PROBLEM else [0, 1, 3]))
                  for s in (STAGES[0], STAGES[-1], None) for k in ('kill', 'stop')]
        kinds.append(lambda t=t: f_anytime('fork', t, *pick(), R.choice([signal.SIGKILL, signal.SIGSEGV]), 'a rank'))
        kinds.append(lambda t=t: f_anytime('fork', t, *pick(), R.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]), 'the command'))
        for launch in [l for l in LAUNCH if l != 'fork']:
            kinds += [lambda t=t, w=w, l=launch: f_rank(l, t, *pick(), w, R.choice(KILLS)) for w in whens[1:]]
            kinds.append(lambda t=t, l=launch: f_stop(l, t, *pick(), 'under way'))
            kinds += [lambda t=t, w=w, l=launch: f_parent(l, t, *pick(), w, R.choice(PARENT_SIGNALS[l]))
                      for w in whens[1:]]
            kinds.append(lambda t=t, l=launch: f_planted(l, t, *pick(), R.choice(['kill', 'stop']), R.choice(STAGES), R.choice([0, 9])))
            kinds.append(lambda t=t, l=launch: f_anytime(l, t, *pick(), R.choice([signal.SIGKILL, signal.SIGSEGV]), 'a rank'))
        if 'env' in LAUNCH:
            kinds.append(lambda t=t: f_silent('env', t, *pick()))
    if 'mpi' in LAUNCH:
        kinds += [lambda s=s, w=w: f_mpirun(R.choice(list(TRANSPORTS)), *pick(), s, w)
                  for s in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT) for w in ('in set-up', 'under way')]
    while len(out) < n:
        order = kinds[:]
        R.shuffle(order)
        out += [k() for k in order]
    return out[:n]
todo = [(i, x) for i, x in enumerate(plan(A.faults)) if A.only in x[0]]
try:
    if A.list:
        for i, (name, go) in todo:
            print(i, name)
        sys.exit(0)
    for core in STALLED:
        threading.Thread(target=watch_core, args=[core], daemon=True).start()
    begun = time.time()
    for i, (name, go) in todo:
        if time.time() - begun > A.seconds or A.first and bad:
            break
        for left in range(4, -1, -1):
            R.seed(A.seed * 100003 + i)
            before = stalled(), len(bad), count
            since, theirs = time.monotonic(), time_of_others()
            try:
                go()
            except Exception as x:
                say(f'(not judged: {name}: {x!r})')
            for p in procs():
                kill(p, signal.SIGKILL)
            for _ in range(500):
                if not procs():
                    break
                time.sleep(0.01)
            reap()
            stall, share = stalled() - before[0], share_of_others(since, theirs)
            if stall == 0 and share < OTHERS or left == 0 or A.first or len(bad) == before[1] and count > before[2] or re.search('damage|not valid', str(bad[before[1]:])):
                break
            say(f'again: the machine gave nobody a core for {stall:.1f} s, and others {share:.0%} of its cores: {name}')
            patience = time.monotonic() + 30
            while share >= OTHERS and time.monotonic() < patience:
                since, theirs = time.monotonic(), time_of_others()
                time.sleep(1)
                share = share_of_others(since, theirs)
            del bad[before[1]:]
            count = before[2]
    for w, c in sorted(collections.Counter(w for _, w in known).items()):
        say(f'known: {w}: {c} times')
finally:
    for p in procs():
        kill(p, signal.SIGKILL)
    if os.path.ismount(WORK):
        subprocess.run(['umount', '--lazy', WORK])
    shutil.rmtree(WORK, ignore_errors=True)
    for path in leftovers:
        if os.path.exists(path) and os.stat(path).st_uid == os.geteuid():
            os.unlink(path)
say(f'{count} faults, {len(bad)} violations, seed {A.seed}')
sys.exit(1 if bad else 0 if count else 77)
