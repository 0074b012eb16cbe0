"""`trace view` in a real browser: the page draws the slices and signals it has, without the network.
view.py EPA2A CONFIG"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

epa2a, config = map(os.path.abspath, sys.argv[1:])
browser = next(filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'google-chrome'))), None)
if browser is None:
    print('there is no chromium here (Debian package chromium)')
    sys.exit(77)
work = tempfile.TemporaryDirectory()
os.chdir(work.name)


def run(*args):
    return subprocess.run(args, capture_output=True, timeout=100, check=True).stdout


def browse(*options):
    """As root chromium runs without its sandbox only; the page is one that this test wrote."""
    return run(browser, '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
               '--window-size=1200,500', '--virtual-time-budget=5000',
               f'--user-data-dir={work.name}/browser', *options, f'file://{work.name}/page.html')


def make_page():
    run(epa2a, 'bench', config, '--set', 'profile=p', '--set', 'bench.iterations=12', '--force')
    # A name that would end the script, if it could.
    with open('p.json', encoding='utf-8') as f:
        text = f.read()
    with open('p.json', 'w', encoding='utf-8') as f:
        f.write(text.replace('"name": "small, 4 ranks, uneven"', '"name": "</script><b>x</b>"'))
    run(epa2a, 'trace', 'view', 'p.json', '--out', 'page.html', '--force')


make_page()
with open('page.html', encoding='utf-8') as f:
    page = f.read()
assert page.count('</script>') == 1 and not re.search(r'(src|href)=|https?:', page)

dom = browse('--dump-dom').decode()
body = re.search(r'<body[^>]*>', dom).group(0)
assert 'data-ready="1"' in body, body
drawn = int(re.search(r'data-slices="(\d+)"', body).group(1))
flows = int(re.search(r'data-flows="(\d+)"', body).group(1))
assert drawn >= 4 * 20 and flows >= 4 * 3 * 3, body
assert '&lt;/script&gt;&lt;b&gt;x&lt;/b&gt;' in dom
for name in ('quant_and_put', 'topk_reduce', 'barrier'):
    assert f'</i>{name}</span>' in dom, name

print(f'{drawn} slices and {flows} signals drawn')
