package pingpong

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// The ibv_*_pingpong programs exchange the addresses of their QPs over TCP:
//
//	client                                         server
//	  dest ───────────────────────────────────────►
//	                                  connects its QP to that
//	  ◄─────────────────────────────────────── dest
//	  "done" ─────────────────────────────────────►
//	connects its QP
//
// Each message is text with its terminating NUL. It is sent in one write, as the peer reads it in
// one read. ibv_srq_pingpong sends many dests each way.

// destLen is the length of a dest on the wire.
const destLen = len("0000:000000:000000:00000000000000000000000000000000\x00")

const done = "done\x00"

// dest is the address of a QP.
type dest struct {
	lid uint16
	qpn uint32 // 24 bits
	psn uint32 // 24 bits
	gid verbs.GID
}

// String formats a dest as ibv_*_pingpong prints it. An IPv4 address is printed as a mapped
// address.
func (d dest) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", d.lid, d.qpn, d.psn, netip.AddrFrom16(d.gid))
}

func (d dest) encode() []byte {
	return fmt.Appendf(make([]byte, 0, destLen), "%04x:%06x:%06x:%x\x00", d.lid, d.qpn, d.psn, d.gid[:])
}

func parseDest(b []byte) (dest, error) {
	var n [2]uint32
	lid, gid, err := parseFields(b, destLen, n[:])
	if err != nil {
		return dest{}, err
	}
	return dest{lid: lid, qpn: n[0], psn: n[1], gid: gid}, nil
}

// parseFields parses the text of an address, of length bytes: a LID, 24-bit numbers, and a GID.
func parseFields(b []byte, length int, n []uint32) (lid uint16, gid verbs.GID, err error) {
	bad := func(what string) (uint16, verbs.GID, error) {
		return 0, gid, fmt.Errorf("the peer sent %q: %s (is it an ibv_*_pingpong?)", b, what)
	}
	text, terminated := strings.CutSuffix(string(b), "\x00")
	fields := strings.Split(text, ":")
	if len(b) != length || !terminated || len(fields) != len(n)+2 {
		return bad(fmt.Sprintf("not %d fields followed by a NUL", len(n)+2))
	}
	for i := range fields[:len(n)+1] {
		bits := 24
		if i == 0 {
			bits = 16
		}
		v, err := strconv.ParseUint(fields[i], 16, bits)
		switch {
		case err != nil:
			return bad(fmt.Sprintf("field %d is not a hexadecimal number of %d bits", i+1, bits))
		case i == 0:
			lid = uint16(v)
		default:
			n[i-1] = uint32(v)
		}
	}
	digits, err := hex.DecodeString(fields[len(n)+1])
	if err != nil || len(digits) != len(gid) {
		return bad("the GID is not 32 hexadecimal digits")
	}
	copy(gid[:], digits)
	return lid, gid, nil
}

func readDest(r io.Reader) (dest, error) {
	b := make([]byte, destLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return dest{}, fmt.Errorf("read the peer's address: %w", err)
	}
	return parseDest(b)
}

// writeDests sends the addresses in one write.
func writeDests(w io.Writer, dests []dest) error {
	var b []byte
	for _, d := range dests {
		b = append(b, d.encode()...)
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("send the local address: %w", err)
	}
	return nil
}

func readDests(r io.Reader, n int) (dests []dest, err error) {
	for range n {
		d, err := readDest(r)
		if err != nil {
			return nil, err
		}
		dests = append(dests, d)
	}
	return dests, nil
}

// clientExchange sends the addresses of the local QPs to the server, and returns those of as many
// server QPs.
func clientExchange(ctx context.Context, n *node.Node, server netip.AddrPort, local []dest) ([]dest, error) {
	conn, err := n.Host.DialStream(ctx, netip.AddrPort{}, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer node.CloseWhenDone(ctx, conn)()
	if err := writeDests(conn, local); err != nil {
		return nil, err
	}
	remote, err := readDests(conn, len(local))
	if err != nil {
		return nil, node.Cause(ctx, err)
	}
	if _, err := conn.Write([]byte(done)); err != nil {
		return nil, fmt.Errorf("send %q: %w", done, err)
	}
	return remote, nil
}

// serverExchange waits on l, which it closes, for one client. connect is called with the addresses
// of the client's n QPs, and returns those of the local QPs.
func serverExchange(ctx context.Context, l net.Listener, n int, connect func([]dest) ([]dest, error)) error {
	stop := node.CloseWhenDone(ctx, l)
	conn, err := l.Accept()
	stop()
	_ = l.Close() // there is one client only
	if err != nil {
		return node.Cause(ctx, fmt.Errorf("accept on %v: %w", l.Addr(), err))
	}
	return answerExchange(ctx, conn, n, connect)
}

// answerExchange returns the server's side on a connection, which it closes.
func answerExchange(ctx context.Context, conn net.Conn, n int, connect func([]dest) ([]dest, error)) error {
	defer conn.Close()
	defer node.CloseWhenDone(ctx, conn)()
	remote, err := readDests(conn, n)
	if err != nil {
		return node.Cause(ctx, err)
	}
	local, err := connect(remote)
	if err != nil {
		return err
	}
	if err := writeDests(conn, local); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, make([]byte, len(done))); err != nil {
		return node.Cause(ctx, fmt.Errorf("wait for the client's %q: %w", done, err))
	}
	return nil
}
