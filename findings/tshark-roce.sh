#!/bin/sh
# Version: tshark 4.4.19 (Debian 13). Those of Debian 12, 4.0.17, and of sid, 4.6.9, do the same.
# It needs apt, Debian's keys, Python 3, and an x86-64 Linux.
#
# Guess: tshark dissects each right RoCEv2 packet: it names the operation, shows the payload and the
# ICRC, and calls none malformed. A filter for malformed packets finds those that are broken.
#
# Seen:
#   - It takes an RC SEND with at most 12 bytes for RPC-over-RDMA, calls it malformed, and shows
#     neither payload nor ICRC. --disable-protocol rpcordma ends that.
#   - A payload has its padding: 13 bytes are shown as 16.
#   - It does not know a congestion notification packet (CNP, opcode 0x81). Its 16 reserved bytes
#     and its ICRC are 20 bytes of an unknown header.
#
# The capture has no connection set up. The columns are the packet, its opcode, the length of its
# payload, its ICRC, and what is malformed:
#
#   SEND of 0 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
#   SEND of 4 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
#   SEND of 8 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
#   SEND of 12 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
#   SEND of 13 bytes|4|16|0x2afe8e68|
#   SEND of 16 bytes|4|16|0x626a3b6b|
#   WRITE of 4 bytes|10|4|0x4c878037|
#   CNP|129|||
#   without rpcordma:
#   SEND of 0 bytes|4||0xadd295fd|
#   SEND of 4 bytes|4|4|0x9d3e1c90|
#   SEND of 8 bytes|4|8|0xac563590|
#   SEND of 12 bytes|4|12|0xd497c3a6|
#   SEND of 13 bytes|4|16|0x2afe8e68|
#   SEND of 16 bytes|4|16|0x626a3b6b|
#   WRITE of 4 bytes|10|4|0x4c878037|
#   CNP|129|||
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >capture.py <<'EOF'
import struct
import zlib


def packet(opcode, psn, payload, becn=0):
    """Return a frame with a packet to QP 0x11."""
    pad = -len(payload) % 4
    roce = struct.pack(">BBHII", opcode, 0x40 | pad << 4, 0xffff, becn << 30 | 0x11, psn) + payload + bytes(pad)
    udp = struct.pack(">HHHH", 0xc000, 4791, 8 + len(roce) + 4, 0)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 2, 20 + len(udp) + len(roce) + 4, 1, 0x4000, 64, 17, 0,
                     bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2]))
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xffff) + (total >> 16)
    ip = ip[:10] + struct.pack(">H", ~total & 0xffff) + ip[12:]
    # The ICRC sees ones in place of the fields that may change on the way.
    seen = bytearray(b"\xff" * 8 + ip + udp + roce)
    for i in 8 + 1, 8 + 8, 8 + 10, 8 + 11, 28 + 6, 28 + 7, 36 + 4:
        seen[i] = 0xff
    icrc = struct.pack("<I", zlib.crc32(seen))
    return bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]) + ip + udp + roce + icrc


with open("capture.pcap", "wb") as capture, open("names", "w") as names:
    capture.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
    sizes = 0, 4, 8, 12, 13, 16
    frames = [("SEND of %d bytes" % n, packet(4, psn, bytes(range(65, 65 + n)))) for psn, n in enumerate(sizes)]
    frames.append(("WRITE of 4 bytes", packet(10, len(sizes), struct.pack(">QII", 4096, 7, 4) + b"data")))
    frames.append(("CNP", packet(0x81, 0, bytes(16), becn=1)))
    for name, frame in frames:
        capture.write(struct.pack("<IIII", 1700000000, 0, len(frame), len(frame)) + frame)
        print(name, file=names)
EOF
mkdir -p lists/partial cache/archives/partial parts root
echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >list
: >status
apt="apt-get -qq -o Dir::Etc::sourcelist=$dir/list -o Dir::Etc::sourceparts=$dir/parts
	-o Dir::Etc::preferencesparts=$dir/parts -o Dir::State::lists=$dir/lists -o Dir::State::status=$dir/status
	-o Dir::Cache=$dir/cache -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root
	-o Debug::NoLocking=1 -o Acquire::Languages=none"
{
	$apt update && $apt -y --no-install-recommends --download-only install tshark=4.4.19-0+deb13u1 &&
		for deb in cache/archives/*.deb; do dpkg-deb -x "$deb" root || exit 2; done &&
		python3 capture.py
} >log 2>&1 || { cat log >&2; exit 2; }

# dissect prints a line a packet.
dissect() {
	"$(find root -name ld-linux-x86-64.so.2 | head -n 1)" \
		--library-path root/lib/x86_64-linux-gnu:root/usr/lib/x86_64-linux-gnu root/usr/bin/tshark "$@" -r capture.pcap -T fields \
		-E separator='|' -e infiniband.bth.opcode -e data.len -e infiniband.invariant.crc -e _ws.malformed \
		>fields 2>errors || { cat errors >&2; exit 2; }
	paste -d '|' names fields
}
{
	dissect
	echo "without rpcordma:"
	dissect --disable-protocol rpcordma
} >seen
cat seen
cat >expected <<'EOF'
SEND of 0 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
SEND of 4 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
SEND of 8 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
SEND of 12 bytes|4|||[Malformed Packet: RPCoRDMA],_ws.malformed
SEND of 13 bytes|4|16|0x2afe8e68|
SEND of 16 bytes|4|16|0x626a3b6b|
WRITE of 4 bytes|10|4|0x4c878037|
CNP|129|||
without rpcordma:
SEND of 0 bytes|4||0xadd295fd|
SEND of 4 bytes|4|4|0x9d3e1c90|
SEND of 8 bytes|4|8|0xac563590|
SEND of 12 bytes|4|12|0xd497c3a6|
SEND of 13 bytes|4|16|0x2afe8e68|
SEND of 16 bytes|4|16|0x626a3b6b|
WRITE of 4 bytes|10|4|0x4c878037|
CNP|129|||
EOF
cmp seen expected
