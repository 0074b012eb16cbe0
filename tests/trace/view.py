"""`trace view` in a real browser: the page draws every slice it has, in colours, without the network.
view.py EPA2A CONFIG"""
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

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
               '--hide-scrollbars', '--window-size=1200,500', '--force-device-scale-factor=1',
               '--blink-settings=preferredColorScheme=1', '--virtual-time-budget=5000',
               f'--user-data-dir={work.name}/browser', *options, f'file://{work.name}/page.html')


def pixels(path):
    """A PNG of 8 bits a channel, not interlaced, as lists of (r, g, b)."""
    with open(path, 'rb') as file:
        data = file.read()
    at, packed = 8, b''
    while at < len(data):
        size, kind = struct.unpack('>I4s', data[at:at + 8])
        body = data[at + 8:at + 8 + size]
        if kind == b'IHDR':
            width, height, depth, colour = struct.unpack('>IIBB', body[:10])
            assert depth == 8 and colour in (2, 6), (depth, colour)
        packed += body if kind == b'IDAT' else b''
        at += 12 + size
    step = 3 if colour == 2 else 4
    raw, before, rows = zlib.decompress(packed), bytearray(width * step), []
    for y in range(height):
        start = y * (width * step + 1)
        how, row = raw[start], bytearray(raw[start + 1:start + 1 + width * step])
        for i in range(len(row)):
            left = row[i - step] if i >= step else 0
            corner = before[i - step] if i >= step else 0
            up = before[i]
            if how == 1:
                row[i] = (row[i] + left) & 255
            elif how == 2:
                row[i] = (row[i] + up) & 255
            elif how == 3:
                row[i] = (row[i] + (left + up) // 2) & 255
            elif how == 4:
                guess = left + up - corner
                near = min((abs(guess - left), 0, left), (abs(guess - up), 1, up),
                           (abs(guess - corner), 2, corner))[2]
                row[i] = (row[i] + near) & 255
        rows.append([tuple(row[x:x + 3]) for x in range(0, len(row), step)])
        before = row
    return rows


def make_page():
    run(epa2a, 'bench', config, '--set', 'profile=p', '--set', 'bench.iterations=12', '--force')
    # A name that would end the script, if it could.
    with open('p.json', encoding='utf-8') as f:
        text = f.read()
    with open('p.json', 'w', encoding='utf-8') as f:
        f.write(text.replace('"name": "small, 4 ranks, uneven"', '"name": "</script><b>x</b>"'))
    run(epa2a, 'trace', 'view', 'p.json', '--out', 'page.html', '--force')


def colours_drawn():
    browse(f'--screenshot={work.name}/page.png')
    counted = {}
    for line in pixels('page.png')[100:]:
        for point in line[140:]:
            counted[point] = counted.get(point, 0) + 1
    return counted


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

# A rank that was stopped for long makes all else narrow: such a run is drawn again.
colours = colours_drawn()
for _ in range(4):
    if colours.get((59, 125, 216), 0) > 200:
        break
    make_page()
    colours = colours_drawn()
for colour, name in (((59, 125, 216), 'dispatch'), ((154, 163, 174), 'barrier')):
    assert colours.get(colour, 0) > 200, (name, colours.get(colour, 0))
strong = [c for c, n in colours.items() if n > 50 and max(c) - min(c) > 60]
assert len(strong) >= 5, strong
print(f'{drawn} slices and {flows} signals drawn, {len(strong)} colours seen')
