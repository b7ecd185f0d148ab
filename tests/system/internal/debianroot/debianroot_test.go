package debianroot

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	const (
		bookworm = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n"
		forky    = "VERSION_ID=\"14\"\nVERSION_CODENAME=forky\nID=debian\n" // newer than what is known
		sid      = "PRETTY_NAME=\"Debian GNU/Linux forky/sid\"\nVERSION_CODENAME=forky\nID=debian\n"
		ubuntu   = "VERSION_ID=\"25.10\"\nVERSION_CODENAME=questing\nID=ubuntu\nID_LIKE=debian\n" // its debian_version is trixie/sid
	)
	for text, want := range map[string]string{bookworm: "bookworm", forky: "forky", sid: "sid"} {
		if got, err := parse(text); got != want || err != nil {
			t.Errorf("%q is %q (%v), want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ID=debian\nVERSION_ID=12\n", ubuntu, "forky/sid"} {
		if got, err := parse(text); err == nil {
			t.Errorf("%q is %q", text, got)
		}
	}
}

func TestChoose(t *testing.T) {
	now := time.Date(2026, 11, 29, 2, 0, 0, 0, time.UTC)
	const fresh, old, other, early = "sid-aa-2026-11-28", "sid-aa-2026-11-14", "sid-bb-2026-11-29", "sid-aa-2026-11-30"
	keep := []string{"lock", "trixie-aa-2026-01-01", "sidecar"}
	for _, test := range []struct {
		names []string
		use   string
		stale []string
	}{
		{names: []string{fresh}, use: fresh},
		{names: []string{"sid-aa-2026-11-20", fresh}, use: fresh, stale: []string{"sid-aa-2026-11-20"}},
		{names: []string{old}, stale: []string{old}},
		{names: []string{early, other}, stale: []string{early, other}},
		{names: []string{"sid-aa", "sid-aa-", "sid-aa-x"}, stale: []string{"sid-aa", "sid-aa-", "sid-aa-x"}},
		{names: []string{"making-1234", fresh}, use: fresh, stale: []string{"making-1234"}},
	} {
		use, stale := choose(append(test.names, keep...), "sid", "aa", now)
		slices.Sort(stale)
		if use != test.use || !slices.Equal(stale, test.stale) {
			t.Errorf("%v: use %q, remove %v; want %q, %v", test.names, use, stale, test.use, test.stale)
		}
	}
}

func TestRemoveUnused(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("mmdebstrap runs on Linux only")
	}
	dir := filepath.Join(t.TempDir(), "root")
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock(user, shared); err != nil {
		t.Fatal(err)
	}
	if err := removeUnused(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "etc")); err != nil {
		t.Errorf("a directory in use: %v", err)
	}
	if err := user.Close(); err != nil {
		t.Fatal(err)
	}
	if err := removeUnused(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that nothing uses: %v", err)
	}
}
