"""vmlinux.py VMLINUZ >VMLINUX: extracts the kernel from its boot image. The result starts at once, whereas unpacking
itself takes an emulated machine some seconds. Kernels not packed by xz are copied unchanged."""
import lzma
import struct
import sys

with open(sys.argv[1], "rb") as file:
    image = file.read()
# The header of Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length.
start = ((image[0x1F1] or 4) + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
payload = image[start : start + struct.unpack_from("<I", image, 0x24C)[0]]
packed = payload.startswith(b"\xfd7zXZ\0")
sys.stdout.buffer.write(lzma.LZMADecompressor().decompress(payload) if packed else image)
