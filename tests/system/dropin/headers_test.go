//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// release is the rdma-core of a suite of Debian, in a directory. The installed one has none.
type release struct {
	version int
	dir     string
}

func (r release) headers() []string {
	if r.dir == "" {
		return nil
	}
	return []string{"-isystem", filepath.Join(r.dir, "usr/include")}
}

// rdmaCore downloads the rdma-core of a suite, with apt-get and lists of its own, into the user's
// cache. The Release of sid may have expired.
func rdmaCore(t *testing.T, suite string) release {
	t.Helper()
	user, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	cache := filepath.Join(user, "softrnic-rdma-core")
	r := release{dir: filepath.Join(cache, suite)}
	if _, err := os.Stat(r.dir); err != nil {
		if err := os.MkdirAll(cache, 0o755); err != nil {
			t.Fatal(err)
		}
		work, err := os.MkdirTemp(cache, "downloading-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(work)
		download(t, suite, work)
		if err := os.Rename(filepath.Join(work, "root"), r.dir); err != nil {
			t.Fatal(err)
		}
	}
	// The library is named libibverbs.so.1.ABI.VERSION.
	files, err := filepath.Glob(filepath.Join(r.dir, installed, "libibverbs.so.1.*.*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s has the libraries %v: %v", r.dir, files, err)
	}
	r.version, err = strconv.Atoi(strings.Split(filepath.Base(files[0]), ".")[4])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s has rdma-core %d", suite, r.version)
	return r
}

// download unpacks packages of a suite into the directory root in work.
func download(t *testing.T, suite, work string) {
	t.Helper()
	sources := fmt.Sprintf("deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian %s main\n", suite)
	if err := os.WriteFile(filepath.Join(work, "sources"), []byte(sources), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"lists/partial", "cache/archives/partial", "root"} {
		if err := os.MkdirAll(filepath.Join(work, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	aptGet := func(args ...string) {
		t.Helper()
		options := []string{"-qq"}
		for _, o := range []string{
			"Dir::Etc::SourceList=" + filepath.Join(work, "sources"), "Dir::Etc::SourceParts=/dev/null",
			"Dir::State::Lists=" + filepath.Join(work, "lists"), "Dir::Cache=" + filepath.Join(work, "cache"),
			"Acquire::Languages=none", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
			"Acquire::Check-Valid-Until=false", "APT::Sandbox::User=root",
		} {
			options = append(options, "-o", o)
		}
		cmd := exec.CommandContext(t.Context(), "apt-get", append(options, args...)...)
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apt-get %v: %v\n%s", args, err, out)
		}
	}
	aptGet("update")
	aptGet("download", "libibverbs-dev", "librdmacm-dev", "libibverbs1", "librdmacm1t64", "ibverbs-providers")
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, deb := range debs {
		if out, err := exec.Command("dpkg-deb", "-x", deb, filepath.Join(work, "root")).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", deb, err, out)
		}
	}
}

// The libraries compile with the headers of Debian 13 and of sid, and what is built with those of
// sid or of this machine serves programs compiled with either: testdata/capabilities.c. They have
// all symbols of sid's libraries.
func TestHeadersOfOtherReleases(t *testing.T) {
	gate.Long(t)
	if os.Getuid() != 0 {
		t.Skip("apt-get downloads as root")
	}
	old, middle, newest := release{}, rdmaCore(t, "trixie"), rdmaCore(t, "sid")

	var sources []string
	for _, pattern := range []string{"libibverbs/*.c", "librdmacm/*.c"} {
		files, err := filepath.Glob(filepath.Join("../../../cmd/dropin", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		sources = append(sources, files...)
	}
	args := append([]string{"-fsyntax-only", "-Wall", "-Wextra", "-Werror"}, middle.headers()...)
	if out, err := exec.Command("gcc", append(args, sources...)...).CombinedOutput(); err != nil {
		t.Errorf("with rdma-core %d: %v\n%s", middle.version, err, out)
	}

	libs := t.TempDir()
	for dir := libs; dir != os.TempDir(); dir = filepath.Dir(dir) { // nobody runs the programs
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(build(t), "libsoftrnic.so"), filepath.Join(libs, "libsoftrnic.so")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", "github.com/softrnic/softrnic/cmd/dropin/build", "-engine=false", "-o", libs,
		"-headers", newest.headers()[1])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("with rdma-core %d: %v\n%s", newest.version, err, out)
	}
	for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1", "libmlx5.so.1", "libefa.so.1", "libhns.so.1", "libionic.so.1",
		"libmana.so.1", "libmlx4.so.1"} {
		ours := filepath.Join(libs, lib)
		if _, err := os.Stat(ours); err != nil {
			ours = filepath.Join(libs, strings.TrimSuffix(lib, ".so.1"), lib)
		}
		has := exports(t, ours)
		for s := range exports(t, filepath.Join(newest.dir, installed, lib)) {
			if !mapHas(has, s) && !mapHas(has, symbol{s.name, s.version, !s.hidden}) { // private ones have several versions
				complain(t, newest.version, false, "%s lacks %s@%s", lib, s.name, s.version)
			}
		}
	}

	for _, r := range []release{old, newest} {
		program := filepath.Join(libs, fmt.Sprint("capabilities", r.version))
		args := append([]string{"-O2", "-Wall", "-Wextra", "-Werror", "-o", program, "testdata/capabilities.c"}, r.headers()...)
		if r.dir != "" { // its libraries need a newer C library than this machine may have
			args = append(args, fmt.Sprint("-DRELEASE=", r.version), "-L"+filepath.Join(r.dir, installed), "-Wl,--allow-shlib-undefined")
		}
		if out, err := exec.Command("gcc", append(args, "-lrdmacm", "-libverbs")...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		for _, with := range []string{build(t), libs} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			n, _ := pair(t, 0)
			n.env = append(n.env, "SOFTRNIC_LINK=pipe", "SOFTRNIC_SPEED=800", "LD_LIBRARY_PATH="+with)
			var out bytes.Buffer
			cmd := n.program(ctx, t, program)
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil {
				t.Errorf("program of rdma-core %d, libraries of %s: %v\n%s", r.version, with, err, out.String())
			}
			cancel()
		}
	}
}
