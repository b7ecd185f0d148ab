//go:build linux && amd64

package dropin

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// providers are the vendors' libraries with stand-ins here, and the versions of their symbols. Each
// release of rdma-core has some of them.
var providers = map[string]string{
	"libmlx5.so.1": "MLX5_", "libefa.so.1": "EFA_", "libmlx4.so.1": "MLX4_", "libmana.so.1": "MANA_", "libhns.so.1": "HNS_",
	"libionic.so.1": "IONIC_",
}

// linked returns the ones that a program needs at load.
func linked(t *testing.T, program string) (libs []string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range all {
		if providers[lib] != "" {
			libs = append(libs, lib)
		}
	}
	if len(libs) < 2 {
		t.Fatalf("%s needs only %v of the vendors' libraries", program, libs)
	}
	return libs
}

// standIn returns the file of one of providers.
func standIn(t *testing.T, lib string) string {
	return filepath.Join(build(t), strings.TrimSuffix(lib, ".so.1"), lib)
}

// The stand-ins have every symbol that the installed perftest and UCX need from the vendors'
// libraries, and every symbol of the installed libraries, with their versions. Those that are new
// in an rdma-core newer than the newest known one are logged. TestHeadersOfOtherReleases has the
// libraries of a later release.
func TestSymbolsOfProviders(t *testing.T) {
	gate.System(t)
	needs(t, filepath.Join(installed, "libmlx5.so.1"), "ibverbs-providers")
	needed, release := 0, installedRelease("ibverbs-providers")
	for lib, prefix := range providers {
		if _, err := os.Stat(filepath.Join(installed, lib)); err != nil {
			t.Logf("the installed rdma-core has no %s", lib)
			continue
		}
		ours := exports(t, standIn(t, lib))
		for s, kind := range exports(t, filepath.Join(installed, lib)) {
			if strings.HasPrefix(s.version, prefix) && kind == elf.STT_FUNC && !mapHas(ours, s) {
				complain(t, release, false, "%s lacks %s@%s (hidden: %v)", lib, s.name, s.version, s.hidden)
			}
		}
		users, err := filepath.Glob("/usr/bin/ib_*")
		if err != nil {
			t.Fatal(err)
		}
		ofUCX, err := filepath.Glob(filepath.Join(installed, "ucx/libuct_ib.so.0")) // not in every release of Debian
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range slices.Concat(users, ofUCX, []string{"/usr/bin/raw_ethernet_bw"}) {
			needs(t, user, "perftest")
			f, err := elf.Open(user)
			if err != nil {
				continue // a script
			}
			symbols, err := f.ImportedSymbols()
			if err != nil {
				t.Error(err)
			}
			for _, s := range symbols {
				if !strings.HasPrefix(s.Version, prefix) {
					continue
				}
				needed++
				if !mapHas(ours, symbol{s.Name, s.Version, false}) && !mapHas(ours, symbol{s.Name, s.Version, true}) {
					complain(t, release, false, "%s needs %s@%s, which our %s lacks", user, s.Name, s.Version, lib)
				}
			}
			_ = f.Close()
		}
	}
	if needed < 4 {
		t.Errorf("the programs need only %d symbols", needed)
	}
}

// hide runs a command as nobody in a mount namespace where the library directory lacks the vendors'
// libraries. $0 is an empty directory.
const hide = `set -e
mkdir "$0/old" "$0/new"
mount --bind /usr/lib/x86_64-linux-gnu "$0/old"
ln -s -t "$0/new" "$0"/old/*
rm -f "$0"/new/libmlx5* "$0"/new/libefa* "$0"/new/libmlx4* "$0"/new/libmana* "$0"/new/libhns* "$0"/new/libionic*
mount --bind "$0/new" /usr/lib/x86_64-linux-gnu
`

// TestAbsentProviders: programs that are linked against vendors' libraries run with the stand-ins
// if the machine lacks these libraries. Otherwise they use the installed ones.
func TestAbsentProviders(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	softrnic := command(t)
	dir := shared(t)
	unshare, drop := []string{"unshare", "--mount"}, `exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"`
	if os.Getuid() != 0 {
		unshare, drop = append(unshare, "--user", "--map-current-user", "--keep-caps"), `exec "$@"`
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	n := 0
	hidden := func(args ...string) *exec.Cmd {
		n++
		empty := filepath.Join(dir, fmt.Sprint("hidden", n))
		if err := os.Mkdir(empty, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, unshare[0], append(unshare[1:], append([]string{"sh", "-c", hide + drop, empty}, args...)...)...)
		cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir}, "/",
			time.Second
		return cmd
	}
	if out, err := hidden("true").CombinedOutput(); err != nil {
		t.Skipf("this user may make no mount namespace: %v\n%s", err, out)
	}
	if out, err := hidden("ldd", "/usr/bin/ib_write_bw").CombinedOutput(); strings.Count(string(out), "not found") < 2 {
		t.Fatalf("the vendors' libraries are not hidden (%v):\n%s", err, out)
	}
	libs := linked(t, "/usr/bin/ib_write_bw")
	line := []string{softrnic, "run", "--link", "kernel:lo", "--sysfs", "off", "--addr"}
	for _, c := range []struct {
		cmd  *exec.Cmd
		from func(lib string) string
	}{
		{hidden(append(line, "127.18.4.1", "--", "ldd", "/usr/bin/ib_write_bw")...), func(lib string) string { return standIn(t, lib) }},
		{runner(ctx, t, dir, "--link kernel:lo --sysfs off --addr 127.18.4.1", "ldd", "/usr/bin/ib_write_bw"), func(lib string) string {
			return filepath.Join(installed, lib)
		}},
	} {
		out, err := c.cmd.CombinedOutput()
		for _, lib := range libs {
			// ldd says /lib or /usr/lib, which are the same.
			said := strings.ReplaceAll(string(out), " /lib/", " /usr/lib/")
			if want := lib + " => " + c.from(lib) + " "; err != nil || !strings.Contains(said, want) {
				t.Errorf("%v, want %q:\n%s", err, want, out)
			}
		}
	}
	freePort++
	program := []string{"--", "ib_write_bw", "-d", "softrnic0", "-F", "-n", "500", "-p", fmt.Sprint(freePort)}
	server := hidden(append(append(line, "127.18.4.1"), program...)...)
	client := hidden(append(append(line, "127.18.4.2"), append(program, "127.0.0.1")...)...)
	if said := run(t, server, client, freePort); strings.Count(said, "65536      500") != 2 {
		t.Errorf("it did not run to its end:\n%s", said)
	}
}
