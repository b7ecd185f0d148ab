package node

import (
	"net"
	"strings"
	"testing"
)

// TestSecureFlags: flags that contradict --secure are errors that name them.
func TestSecureFlags(t *testing.T) {
	for want, f := range map[string]Flags{
		"--peer: only with --secure":        {Peer: make([]Peer, 1)},
		"--secure-port: only with --secure": {SecurePort: 1},
		"--link kernel: --secure uses":      {Secure: "f", Link: LinkSpec{Medium: "kernel"}},
		"--congestion: with --secure":       {Secure: "f", Congestion: true},
		"--mac: with --secure":              {Secure: "f", MAC: macAddr(net.HardwareAddr{2, 0, 0, 0, 0, 1})},
	} {
		if err := f.checkSecure(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (&Flags{Secure: "f", ByDelay: true}).checkSecure(); err != nil {
		t.Errorf("--congestion-by-delay with --secure: %v", err)
	}
}
