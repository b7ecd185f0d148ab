package impair

import (
	"net"
	"slices"
	"testing"
)

func TestClasses(t *testing.T) {
	mac := make(net.HardwareAddr, 6)
	packet := func(opcode, syndrome, qp byte) []byte {
		f := roce(mac, mac, 1, opcode).Data
		f[42+7], f[42+12] = qp, syndrome
		return f
	}
	v6 := append(append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 17), make([]byte, 33)...)
	v6 = append(v6, packet(0x0c, 0, 5)[34:]...)
	tagged := append(append(append(make([]byte, 12), 0x81, 0, 0, 5), v6[12:14]...), v6[14:]...)
	for _, c := range []struct {
		frame []byte
		want  []string
	}{
		{packet(0x04, 0, 5), []string{"any", "roce", "send"}},
		{packet(0x24, 0, 5), []string{"any", "roce", "send"}},
		{packet(0x64, 0, 1), []string{"any", "cm", "roce", "send"}},
		{packet(0x0a, 0, 5), []string{"any", "roce", "write"}},
		{packet(0x0c, 0, 5), []string{"any", "read-request", "roce"}},
		{v6, []string{"any", "read-request", "roce"}},
		{tagged, []string{"any", "read-request", "roce"}},
		{packet(0x0e, 0, 5), []string{"any", "read-response", "roce"}},
		{packet(0x13, 0, 5), []string{"any", "atomic", "roce"}},
		{packet(0x12, 0, 5), []string{"any", "atomic-ack", "roce"}},
		{packet(0x11, 0x1f, 5), []string{"ack", "any", "roce"}},
		{packet(0x11, 0x21, 5), []string{"any", "rnr-nak", "roce"}},
		{packet(0x11, 0x60, 5), []string{"any", "nak", "roce"}},
		{packet(0x81, 0, 5), []string{"any", "cnp", "roce"}},
		{packet(0x11, 0, 5)[:54], []string{"any", "roce"}},
		{packet(0x11, 0, 5)[:53], []string{"any"}},
		{append(packet(0, 0, 0)[:23], append([]byte{6}, packet(0, 0, 0)[24:]...)...), []string{"any", "tcp"}},
		{nil, []string{"any"}},
		{v6[:30], []string{"any"}},
	} {
		var got []string
		for name, match := range classes {
			if match(c.frame) {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%x is %v, want %v", c.frame, got, c.want)
		}
	}
}

// FuzzClasses checks that no frame makes a class panic.
func FuzzClasses(f *testing.F) {
	f.Add(roce(make([]byte, 6), make([]byte, 6), 1, 0x11).Data)
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, match := range classes {
			match(frame)
		}
	})
}
