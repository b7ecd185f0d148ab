//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// hugePages reserves huge pages for the test. It returns the reason if it could not, or "".
func hugePages(t *testing.T, n int) string {
	t.Helper()
	const file = "/proc/sys/vm/nr_hugepages"
	before, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(before)))
	if err != nil {
		return err.Error()
	}
	if err := os.WriteFile(file, fmt.Append(nil, had+n), 0); err != nil {
		return err.Error()
	}
	t.Cleanup(func() { _ = os.WriteFile(file, before, 0) })
	now, err := os.ReadFile(file)
	if got, e := strconv.Atoi(strings.TrimSpace(string(now))); err != nil || e != nil || got < had+n {
		return fmt.Sprintf("the kernel has made %d of %d: no memory is free in one piece", got-had, n)
	}
	return ""
}

// TestMemory runs testdata/memory.c, which describes its checks, over both links.
func TestMemory(t *testing.T) {
	gate.System(t)
	program := compile(t, "memory")
	why := hugePages(t, 8) // two on either side, of each of two kinds
	for _, link := range links {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		server, _ := link.pair(t)
		out, err := server.program(ctx, t, program, filepath.Dir(server.counters), link.client).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", link.link, err, out)
			continue
		}
		want := 6
		if why == "" {
			want = 8
		} else {
			t.Logf("no huge pages: %s", why)
		}
		if got := strings.Count(string(out), ": passed\n"); got < want {
			t.Errorf("%s: %d kinds of memory passed, want %d", link.link, got, want)
		}
		t.Logf("%s:\n%s", link.link, out)
		c := server.counted(t)
		if got, least := 4*c["port_xmit_data"], uint64(2*want*4<<20); got < least {
			t.Errorf("%s: the devices sent %d bytes, want %d at least", link.link, got, least)
		}
	}
}
