package run

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/dropin"
)

// ownLibraries returns libraries of this machine for its processor, by their names, as the dynamic
// linker has them.
func ownLibraries(t *testing.T) map[string]string {
	t.Helper()
	if linkerOf("/bin/sh") == "" {
		t.Skip("no program with shared libraries here")
	}
	found, ok := readCache(linkerCache, []string{"libc.so.6", "libm.so.6", "libdl.so.2", "libgcc_s.so.1", "libz.so.1"})
	if !ok {
		t.Skip("this machine's linker has no cache of the known format")
	}
	own := map[string]string{}
	for name, all := range found {
		for _, l := range all {
			if l.ours {
				own[name] = l.path
			}
		}
	}
	return own
}

// TestCacheAsLinker: the cache has the same answer as the linker, for libraries that the machine
// has and for some that it lacks.
func TestCacheAsLinker(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "")
	own := ownLibraries(t)
	if own["libc.so.6"] == "" {
		t.Fatal("no C library in the cache")
	}
	for name, path := range own {
		f, err := elf.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if names, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Contains(names, name) {
			t.Errorf("%s at %s: its name is %v %v", name, path, names, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, libs := range [][]string{dropin.Providers, {"libc.so.6", "libsoftrnic-none.so.1", "libm.so.6"}} {
		want := missingForLinker(libs)
		if got, sure := missingInCache(linkerCache, libs); !sure || !slices.Equal(got, want) {
			t.Errorf("of %v, the cache lacks %v (sure: %t), and the linker %v", libs, got, sure, want)
		}
	}
}

// TestCacheInDoubt: where the linker may have another answer than the cache, it is asked.
func TestCacheInDoubt(t *testing.T) {
	t.Setenv("LD_LIBRARY_PATH", "")
	own := ownLibraries(t)
	ldconfig, err := exec.LookPath("ldconfig")
	if err != nil {
		ldconfig = "/sbin/ldconfig"
	}
	dir := t.TempDir()
	conf, cache := filepath.Join(dir, "conf"), filepath.Join(dir, "cache")
	// The cache of a machine whose only directory, beside the usual ones, has one library.
	libs := filepath.Join(dir, "libs")
	if err := os.Mkdir(libs, 0o777); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(own["libm.so.6"])
	if err != nil {
		t.Skip("no libm here: ", err)
	}
	// Another name of the same length.
	renamed := slices.Concat(b)
	for i := 0; i+len("libm.so.6") < len(renamed); i++ {
		if string(renamed[i:i+len("libm.so.6")]) == "libm.so.6" {
			renamed[i+3] = '0'
		}
	}
	const name = "lib0.so.6"
	if err := os.WriteFile(filepath.Join(libs, name), renamed, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte(libs+"\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(ldconfig, "-X", "-f", conf, "-C", cache).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", ldconfig, err, out)
	}
	check := func(what string, want bool, libs ...string) {
		t.Helper()
		if missing, sure := missingInCache(cache, libs); sure != want || len(missing) > 0 {
			t.Errorf("%s: missing %v, sure: %t", what, missing, sure)
		}
	}
	check("a library in the cache", true, name)
	entries, err := os.ReadDir(filepath.Dir(own["libc.so.6"]))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if found, _ := readCache(cache, []string{e.Name()}); len(found) == 0 {
			check("a file of a usual directory that the cache lacks", false, e.Name())
			break
		}
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	check("another path", false, name)
	t.Setenv("LD_LIBRARY_PATH", "")
	whole, err := os.ReadFile(cache)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int(binary.LittleEndian.Uint32(whole[cacheCount:])) {
		whole[cacheHeader+i*entryLen+1]++ // another ABI
	}
	if err := os.WriteFile(cache, whole, 0o666); err != nil {
		t.Fatal(err)
	}
	check("a library for another processor", false, name)
	if err := os.WriteFile(cache, whole[:len(whole)/2], 0o666); err != nil {
		t.Fatal(err)
	}
	check("half a cache", false, name)
	if err := os.Truncate(cache, cacheHeader-1); err != nil {
		t.Fatal(err)
	}
	check("no whole header", false, name)
	if err := os.Remove(cache); err != nil {
		t.Fatal(err)
	}
	check("no cache", false, name)
}
