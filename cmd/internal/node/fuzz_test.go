package node

import (
	"slices"
	"testing"

	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/link/vlan"
)

// FuzzLinkSpec: an arbitrary --link is an error, or within the bounds that its help names.
func FuzzLinkSpec(f *testing.F) {
	for _, text := range []string{"shm:x,vlan=7", "stream:tcp:h:1,listen", "tap:t,bridge=b,offloads=off,wait=poll,queues=4",
		"packet:eth0,mac=interface", "kernel:eth0", "pipe"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var s LinkSpec
		if s.UnmarshalText([]byte(text)) != nil {
			return
		}
		if !slices.Contains([]string{"pipe", "shm", "stream", "tap", "packet", "kernel"}, s.Medium) || (s.name == "") != (s.Medium == "pipe" ||
			text == "kernel") || s.queues < 0 || s.queues > tap.MaxQueues || s.vlan < 0 || s.vlan > vlan.MaxID {
			t.Errorf("%q is %+v", text, s)
		}
	})
}

// FuzzAllowed: an arbitrary --allow is an error, or its text allows the same again.
func FuzzAllowed(f *testing.F) {
	for _, text := range []string{"", "10.0.0.2", "::ffff:10.0.0.2", "fe80::1%eth0", "10.0.0.0/24", "host.example",
		"K5KrOeZBqKq0HlYjqyrDWDyTXcZ3Ow1Ya8UYQZV5hF0="} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var a, again Allowed
		if a.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(a.String())); err != nil || again != a || a.IsValid() != (a.peer == "") {
			t.Errorf("%q is %+v, and %q is %+v, %v", text, a, a.String(), again, err)
		}
	})
}
