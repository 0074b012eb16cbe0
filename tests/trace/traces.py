"""The files of `profile:` match the events of the ranks and pass check.py, which finds every planted defect.

traces.py EPA2A CONFIG KIND      KIND: well | workers | nodes | tokens | tiles | columns | spoilt | tools | kill | stop | int | refused"""
import copy
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from check import check

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

epa2a, config, kind = *map(os.path.abspath, sys.argv[1:3]), sys.argv[3]
work = tempfile.TemporaryDirectory()
os.chdir(work.name)


def run(*args, want=0):
    done = subprocess.run([epa2a, *args], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == want, (args, done.returncode, done.stdout, done.stderr)
    return done


def profile(verb, name, *sets, want=0):
    more = [word for one in (f'profile={name}', *sets) for word in ('--set', one)]
    return run(verb, config, '--force', *more, want=want)


def load(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


def sound(*paths):
    for path in paths:
        flaws = list(check(load(path)))
        assert not flaws, (path, flaws[:20])


def slices(document, name):
    return [e for e in document['traceEvents'] if e['ph'] == 'X' and e['name'] == name]


def files(name, ranks=4):
    return [f'{name}.{r}.json' for r in range(ranks)]


def check_content(name, phases, iterations, flows):
    all_ranks = load(f'{name}.json')
    sound(f'{name}.json', *files(name))
    assert {e['pid'] for e in all_ranks['traceEvents']} == {0, 1, 2, 3}
    for phase in phases:
        for rank in range(4):
            found = [e for e in slices(all_ranks, phase) if e['pid'] == rank and e['tid'] == 0]
            assert {e['args']['iteration'] for e in found} == set(iterations), (phase, rank)
    kinds = [e['ph'] for e in all_ranks['traceEvents']]
    assert kinds.count('s') == kinds.count('f') == flows, kinds.count('s')
    assert kinds.count('C') > 0
    parts = [e for path in files(name) for e in load(path)['traceEvents']]
    assert sorted(map(str, parts)) == sorted(map(str, all_ranks['traceEvents']))
    return all_ranks


PHASES = ['dispatch', 'count_put', 'wait', 'counts_from', 'quant_and_put', 'rows_from', 'postprocess',
          'combine', 'copy_and_put', 'recv_wait', 'outputs_from', 'topk_reduce']


def well():
    """The last iterations, each phase, and three signals to each of three peers."""
    done = profile('bench', 'bench', 'bench.warmup=3', 'bench.iterations=20')
    check_content('bench', [*PHASES, 'experts', 'barrier'], range(13, 23), 10 * 4 * 3 * 3)
    assert 'profile: bench.json has the last 10 iterations' in done.stdout, done.stdout
    assert 'recording an event takes' in done.stdout and 'warning: ranks were profiled' in done.stderr
    profile('verify', 'verify', 'profile.iterations=7', 'verify.order=pipelined', 'verify.iterations=50', 'tokens=full')
    check_content('verify', [*PHASES, 'inputs', 'check'], range(43, 50), 7 * 4 * 3 * 3)
    profile('run', 'run', 'profile.iterations=1', 'run.iterations=3', 'tokens=full')
    check_content('run', PHASES, [2], 4 * 3 * 3)
    profile('verify', 'thread', 'launcher=thread', 'verify.iterations=4', 'tokens=full')
    check_content('thread', PHASES, range(4), 4 * 4 * 3 * 3)
    if '\n  ucx ' in run('list', 'transport').stdout:  # two nodes of one host: there is no difference of clocks
        profile('run', 'nodes', 'transport=ucx', 'ranks_per_node=2', 'run.iterations=4')
        clocks = load('nodes.json')['otherData']['clocks']
        assert [clock['error_ns'] > 0 for clock in clocks] == [False, False, True, True], clocks
        assert all(abs(clock['offset_ns']) <= clock['error_ns'] for clock in clocks), clocks
        sound('nodes.json', *files('nodes'))


def workers():
    profile('bench', 'two', 'backend.workers=2', 'bench.iterations=12')
    all_ranks = check_content('two', PHASES, range(4, 14), 10 * 4 * 3 * 3)
    for name in ('quant_and_put', 'topk_reduce'):
        tokens = [e['args'].get('tokens', 0) for e in slices(all_ranks, name) if e['tid'] == 1]
        assert len(tokens) == 40 and sum(tokens) > 0


def tokens():
    """token_flag: each token sent, arrived and waited for; and the source that all wait for is named."""
    shape = ['algorithm={name: token_flag}', 'tokens=full', 'moe.max_tokens=16']
    for more in ([], ['backend.workers=2'], ['transport=reorder'], ['algorithm.chunks=3']):
        profile('run', 'tokens', 'run.iterations=2', *shape, *more)
        whole = load('tokens.json')
        sound('tokens.json', *files('tokens'))
        assert len(slices(whole, 'send_token')) == 2 * 4 * 16
        by_token = [e for e in whole['traceEvents'] if e['ph'] in 'sf' and e['args']['signal'] >= 2 ** 30]
        rows = [e['args']['peer'] for e in slices(whole, 'row_from') + slices(whole, 'output_from')]
        assert len(by_token) == 2 * len(rows) and set(rows) == {0, 1, 2, 3}, (len(by_token), len(rows))
    profile('verify', 'slow', 'verify.iterations=3', *shape,
            'fault={kind: straggle, rank: 2, stage: dispatch_send, every: 1, for: 1s}')
    assert 'slowest source: rank 2' in run('trace', 'summary', 'slow.json').stdout


def gemm_tasks(*sets):
    """The GEMM tasks of one worker, in their order; one expert has four blocks of 32 rows in two parts."""
    profile('run', 'tiles', 'ranks=1', 'run.iterations=1', 'profile.iterations=1', 'tokens=full', 'backend.workers=1',
            'moe={experts: 1, topk: 1, max_tokens: 128, hidden: 256}', 'routing=uniform', 'expert={kind: mlp, ffn: 256}',
            'algorithm={name: fused, block_rows: 32, column_splits: 2}', *sets)
    tasks = [e for e in load('tiles.0.json')['traceEvents'] if e['ph'] == 'X' and e['name'] in ('up', 'down')]
    return ' '.join(e['name'] for e in sorted(tasks, key=lambda e: e['ts']))


def tiles():
    """fused: the order of tasks by groups of blocks; a tile of all columns is one part."""
    assert gemm_tasks() == ' '.join(4 * ['up up down down'])
    assert gemm_tasks('algorithm.group_blocks=2') == ' '.join(2 * ['up up up up down down down down'])
    assert gemm_tasks('algorithm.tile_cols=256') == ' '.join(4 * ['up down'])


def early_sums(columns):
    """The number of sums per iteration, and of iterations in which one is complete before the last output task begins."""
    profile('run', 'columns', 'ranks=1', 'run.iterations=30', 'profile.iterations=30', 'tokens=full', 'routing=uniform',
            'backend.workers=2', 'moe={experts: 1, topk: 1, max_tokens: 64, hidden: 4096}', 'expert={kind: mlp, ffn: 512}',
            f'algorithm={{name: fused, combine_workers: 1, column_splits: 4, combine_cols: {columns}}}')
    document = load('columns.0.json')
    sums, outputs = ([[e for e in slices(document, name) if e['args']['iteration'] == i] for i in range(30)]
                     for name in ('combine_tokens', 'down'))
    early = [min(e['ts'] + e['dur'] for e in of_sums) < max(e['ts'] for e in of_outputs) for of_sums, of_outputs in zip(sums, outputs)]
    return len(sums[0]), sum(early)


def columns():
    """fused: columns that all experts of a token have written are added up before the other columns are written."""
    assert early_sums(0) == (4, 0)
    sums, early = early_sums(512)
    assert sums == 4 * 8 and early > 0, (sums, early)


STATES = ['busy', 'waits for copies', 'waits for slots', 'waits for network', 'idle']


def nodes():
    """GPUs of two nodes: host, proxy, copy engines and kernels on one time axis."""
    profile('run', 'n', 'transport.between_nodes=shm', 'launcher=thread', 'run.iterations=4', 'tokens=full',
            'moe.max_tokens=9', 'moe.hidden=512', 'moe.experts=12', 'moe.topk=3', 'timeout=60s')
    whole = load('n.json')
    sound('n.json', *files('n'))
    lanes = {(e['pid'], e['tid']): e['args']['name'] for e in whole['traceEvents'] if e['name'] == 'thread_name'}
    by_kind = lambda rank, cat: [e for e in whole['traceEvents'] if e.get('cat') == cat and e['pid'] == rank]
    off = 2 * max(clock['error_ns'] for clock in whole['otherData']['clocks']) / 1e3 + 0.002
    for rank in range(4):
        mine = by_kind(rank, 'proxy')
        assert {lanes[rank, e['tid']] for e in mine} >= {'proxy', 'copies from staging'}
        assert {e['args']['peer'] // 2 for e in mine if e['name'] == 'send'} == {1 - rank // 2}
        for name in ('take', 'land', 'deliver', 'complete', 'idle'):
            assert any(e['name'] == name for e in mine), name
        states = sorted((e['ts'], e['dur']) for e in mine if e['name'] in STATES)
        assert all(abs(a[0] + a[1] - b[0]) < 0.002 for a, b in zip(states, states[1:])), states
        kernels = by_kind(rank, 'kernel')
        assert {e['args']['iteration'] for e in kernels} == {3}
        stage = {e['name']: e['ts'] for e in by_kind(rank, 'stage') if e['args']['iteration'] == 3}
        end = max(e['ts'] + e['dur'] for e in by_kind(rank, 'core') if e['args']['iteration'] == 3)
        for e in kernels:
            assert lanes[rank, e['tid']] == f"block {e['args']['block']}, warp {e['args']['warp']}, {e['name']}"
            by = off + e['args']['error_ns'] / 1e3 + 0.002
            assert stage['dispatch_send'] - by <= e['ts'] and e['ts'] + e['dur'] <= end + by, (e, stage, end, by)
    messages = [e for e in whole['traceEvents'] if e['ph'] == 's' and e['args']['signal'] == 2 ** 31]
    assert messages and all(e['args']['from'] // 2 != e['args']['to'] // 2 for e in messages)
    text = run('trace', 'summary', 'n.json').stdout
    rows = text[text.index('# proxies'):].splitlines()[2:6]
    assert all(abs(sum(map(float, row.split()[1:6])) - 100) < 0.5 and int(row.split()[6]) > 0 for row in rows), rows
    assert '# kernels of the last call' in text and 'waits for network' in text
    run('trace', 'merge', *files('n'), '--out', 'merged.json')
    assert sorted(map(str, load('merged.json')['traceEvents'])) == sorted(map(str, whole['traceEvents']))
    for stage in ('dispatch_recv', 'combine_send'):
        run('trace', 'merge', *files('n'), '--stage', stage, '--out', stage + '.json')
        sound(stage + '.json')
        part = load(stage + '.json')['traceEvents']
        assert {e['name'] for e in part if e.get('cat') == 'stage'} == {stage}
        assert any(e.get('cat') == 'kernel' for e in part), stage
    # Each token that was sent, each row and output that arrived; and whose were waited for.
    noted = [e for e in whole['traceEvents'] if e.get('cat') == 'kernel' and 'token' in e['args']]
    by_stage = {stage: [e for e in noted if e['name'] == stage + ', token'] for stage in
                ('dispatch_send', 'dispatch_recv', 'combine_recv')}
    assert [len(some) for some in by_stage.values()] == [4 * 9, 4 * 9 * 3, 4 * 9 * 3], len(noted)
    assert {(e['pid'], e['args']['token']) for e in by_stage['dispatch_send']} == {(r, t) for r in range(4) for t in range(9)}
    for stage in ('dispatch_recv', 'combine_recv'):
        assert {e['args']['peer'] for e in by_stage[stage]} == {0, 1, 2, 3}
    profile('verify', 'slow', 'ranks_per_node=0', 'transport.between_nodes=shm', 'launcher=thread', 'verify.iterations=3',
            'tokens=full', 'moe.max_tokens=9', 'moe.hidden=512', 'moe.experts=12', 'moe.topk=3', 'timeout=60s',
            'fault={kind: straggle, rank: 2, stage: dispatch_send, every: 1, for: 1s}')
    counts = [e for e in load('slow.json')['traceEvents'] if e.get('cat') == 'kernel' and 'peer' in e['args'] and
              'token' not in e['args']]
    assert {(e['pid'], e['args']['peer']) for e in counts} == {(a, b) for a in range(4) for b in range(4)}
    longest = max(counts, key=lambda e: e['dur'])  # of those that had a core in time
    assert longest['args']['peer'] == 2 and longest['pid'] != 2, counts
    assert 'slowest source of tokens: rank' in run('trace', 'summary', 'slow.json').stdout
    # In bench the kernels belong to the last iteration, not to the check that follows later.
    profile('bench', 'b', 'transport.between_nodes=shm', 'launcher=thread', 'bench.iterations=3', 'bench.warmup=1',
            'bench.clock=events', 'tokens=full', 'moe.max_tokens=9', 'moe.hidden=512', 'moe.experts=12', 'moe.topk=3',
            'timeout=60s')
    events = load('b.json')['traceEvents']
    last = max(e['ts'] + e['dur'] for e in events if e.get('cat') == 'core' and e['args']['iteration'] == 3)
    kernels = [e for e in events if e.get('cat') == 'kernel']
    assert kernels and all(e['ts'] < last + off + e['args']['error_ns'] / 1e3 for e in kernels), last


def spoil(document, how):
    events = document['traceEvents']
    some = [e for e in events if e['ph'] == 'X' and e['dur'] > 1]
    flow = [e for e in events if e['ph'] == 'f']
    if how == 'end gone':
        events.remove(random.choice(flow))
    elif how == 'twice':
        events.insert(events.index(flow[3]), copy.deepcopy(flow[3]))
    elif how == 'backwards':
        end = flow[5]
        give = next(e for e in events if e['ph'] == 's' and e['id'] == end['id'])
        give['ts'], end['ts'] = end['ts'], give['ts']
    elif how == 'negative':
        random.choice(some)['dur'] = -1
    elif how == 'crossing':
        next(e for e in events if e['name'] == 'count_put')['dur'] += 1e6 # around it is dispatch
    elif how == 'no name':
        document['traceEvents'] = [e for e in events if e['name'] != 'thread_name']
    elif how == 'dropped':
        document['otherData']['dropped'] = 3
    elif how == 'text':
        random.choice(some)['ts'] = 'soon'
    elif how == 'unknown':
        random.choice(some)['ph'] = 'Q'
    return document


def spoilt():
    profile('bench', 'good', 'bench.iterations=4')
    good = load('good.json')
    missed = []
    for how in ('end gone', 'twice', 'backwards', 'negative', 'crossing', 'no name', 'dropped', 'text',
                'unknown'):
        bad = spoil(copy.deepcopy(good), how)
        if not list(check(bad)):
            missed.append(how)
        with open('bad.json', 'w', encoding='utf-8') as file:
            json.dump(bad, file)
        invalid = how in ('negative', 'text', 'unknown')
        done = run('trace', 'summary', 'bad.json', want=2 if invalid else 0)
        assert not invalid or re.fullmatch(r'epa2a: bad\.json: event \d+: (dur|ts|ph) .*\n', done.stderr), done.stderr
    assert not missed, missed
    for text in ('', '[', '{}', '{"traceEvents": 3}', '\x00\xff', '[' * 100000):
        with open('bad.json', 'w', encoding='latin-1') as file:
            file.write(text)
        assert 'bad.json' in run('trace', 'summary', 'bad.json', want=2).stderr


def tools():
    profile('bench', 'p', 'bench.iterations=20')
    run('trace', 'merge', *files('p'), '--out', 'merged.json')
    merged, whole = load('merged.json'), load('p.json')
    key = lambda e: json.dumps(e, sort_keys=True)
    assert sorted(map(key, merged['traceEvents'])) == sorted(map(key, whole['traceEvents']))
    assert merged['otherData'] == whole['otherData']
    sound('merged.json')
    run('trace', 'merge', *files('p'), '--stage', 'combine', '--out', 'part.json')
    part, spans = load('part.json')['traceEvents'], {}
    for e in whole['traceEvents']:
        if e.get('cat') == 'stage' and e['name'] == 'combine':
            spans.setdefault(e['pid'], []).append((e['ts'] - 1e-3, e['ts'] + e['dur'] + 1e-3))
    inside = lambda e: any(a <= e['ts'] <= b for a, b in spans[e['pid']])
    flows = {e['id'] for e in whole['traceEvents'] if e['ph'] in 'sf' and inside(e)}
    wanted = {key(e) for e in whole['traceEvents'] if e['ph'] == 'M' or inside(e) or e.get('id') in flows}
    more = [e for e in part if key(e) not in wanted]
    assert len(part) - len(more) == len(wanted) and 0 < len(flows) < len(part) < len(whole['traceEvents'])
    ends = [e for e in part if e['ph'] in 'sf' and not inside(e)]  # each with its slice
    assert all(any((a['pid'], a['tid']) == (e['pid'], e['tid']) and a['ts'] <= e['ts'] <= a['ts'] + a['dur'] + 2e-3
                   for e in ends) for a in more)
    sound('part.json')
    assert 'dispatch' in run('trace', 'merge', *files('p'), '--stage', 'x', '--out', 'y', want=2).stderr
    assert '--stage' in run('trace', 'summary', 'p.json', '--stage', 'combine', want=2).stderr
    assert 'rank 1 is in' in run('trace', 'merge', 'p.1.json', 'p.json', '--out', 'x', want=2).stderr
    profile('bench', 'q', 'bench.iterations=20')
    said = run('trace', 'merge', 'p.0.json', 'q.1.json', '--out', 'x', want=2).stderr
    assert 'different runs' in said and not os.path.exists('x')
    assert '--force' in run('trace', 'merge', *files('p'), '--out', 'merged.json', want=2).stderr

    text = run('trace', 'summary', 'p.json').stdout
    for word in (*PHASES, 'barrier', 'waits of ranks for each other', 'what bounded the run',
                 'critical path of the slowest iterations'):
        assert word in text, word
    share = [float(line.split('%')[0]) for line in text.splitlines() if ' %  ' in line]
    assert share == sorted(share, reverse=True) and 0 < sum(share) <= 100.5
    measured = {name: sum(e['dur'] for e in slices(whole, name)) / 40 for name in PHASES}
    for line in text.splitlines():
        words = line.split()
        if words and words[0] in PHASES and len(words) == 8 and ',' not in line and \
                words[0] not in ('wait', 'quiet'):
            assert abs(float(words[1]) - measured[words[0]]) < 0.02, (line, measured)


def start(*sets):
    more = [word for one in sets for word in ('--set', one)]
    return subprocess.Popen([epa2a, 'bench', config, '--set', 'bench.iterations=1000000', *more],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def iterations(process):
    """That every rank has done."""
    done = subprocess.run([epa2a, 'status', str(process.pid), '--json', '-'], capture_output=True, text=True,
                          check=False)
    run = json.loads(done.stdout)['commands'][0]['run'] if done.returncode == 0 else None
    return min(rank['iteration'] or 0 for rank in run['ranks']) if run else 0


def children(process):
    with open(f'/proc/{process.pid}/task/{process.pid}/children', encoding='ascii') as file:
        return [int(pid) for pid in file.read().split()]


def ended(process, name, status):
    process.wait(timeout=60)
    sound(f'{name}.json', *files(name))
    document = load(f'{name}.json')
    assert document['otherData']['status'] == status, document['otherData']['status']
    first, last = document['otherData']['iterations']
    assert last - first == 9, (first, last)
    assert len({e['args']['iteration'] for e in slices(document, 'dispatch')}) >= 9
    assert not [path for path in os.listdir('.') if path.endswith('.tmp')]


def ends(how, status, timeout='100s'):
    for n in range(2):
        process = start(f'profile=end{n}', f'timeout={timeout}')
        while iterations(process) < 20 and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.random() / 4)
        how(process)
        ended(process, f'end{n}', status)


def kill():
    ends(lambda p: os.kill(random.choice(children(p)), signal.SIGKILL), 'died')


def stop():
    ends(lambda p: os.kill(random.choice(children(p)), signal.SIGSTOP), 'timeout', '3s')


def interrupt():
    ends(lambda p: p.send_signal(signal.SIGINT), 'interrupted')


def refused():
    """Before anything runs, and nothing is written."""
    profile('bench', 'there', 'bench.iterations=2')
    os.remove('there.json')
    done = run('bench', config, '--set', 'profile=there', want=2)
    assert 'there.0.json: there is such a file already' in done.stderr and not done.stdout
    assert 'cannot write into the folder' in profile('bench', 'no/where', want=2).stderr
    assert 'profile.iterations needs profile.file' in run(
        'bench', config, '--set', 'profile.iterations=3', want=2).stderr
    assert 'this is a folder' in profile('bench', 'folder/', want=2).stderr
    assert sorted(os.listdir('.')) == files('there')


{'well': well, 'workers': workers, 'nodes': nodes, 'tokens': tokens, 'tiles': tiles, 'columns': columns,
 'spoilt': spoilt, 'tools': tools, 'kill': kill, 'stop': stop,
 'int': interrupt, 'refused': refused}[kind]()
