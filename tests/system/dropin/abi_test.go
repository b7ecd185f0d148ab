//go:build linux && amd64

package dropin

import (
	"debug/elf"
	"go/version"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// installed is the directory of Debian's libraries, which ours replace.
const installed = "/usr/lib/x86_64-linux-gnu"

// symbol is an exported name of a library, with its version. A linker does not choose a hidden
// version.
type symbol struct {
	name, version string
	hidden        bool
}

// exports returns the symbols that a library defines, except for those of the versions themselves.
func exports(t *testing.T, file string) map[symbol]elf.SymType {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	all := map[symbol]elf.SymType{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Section != elf.SHN_ABS && s.Version != "" {
			all[symbol{s.Name, s.Version, s.VersionIndex.IsHidden()}] = elf.ST_TYPE(s.Info)
		}
	}
	return all
}

// privateVersion is the version of the functions that are for rdma-core's own providers. It has the
// number of the release, and programs cannot rely on it. That of Debian 12 is provided.
var privateVersion = regexp.MustCompile(`^IBVERBS_PRIVATE_(\d+)$`)

// Our libraries have every symbol of the installed libraries, with the same version and the same
// default. Those that are new in an rdma-core newer than the newest known one are logged:
// TestSymbolsOfOtherReleases has the others.
func TestSymbolsOfInstalledLibrary(t *testing.T) {
	gate.System(t)
	dir, release := build(t), installedRelease("libibverbs1")
	for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		needs(t, filepath.Join(installed, lib), "libibverbs1 and librdmacm1")
		ours, theirs := exports(t, filepath.Join(dir, lib)), exports(t, filepath.Join(installed, lib))
		if len(theirs) < 60 {
			t.Fatalf("%s has only %d symbols", lib, len(theirs))
		}
		for s, kind := range theirs {
			if m := privateVersion.FindStringSubmatch(s.version); m != nil && m[1] != "34" {
				continue
			}
			if got, ok := ours[s]; !ok {
				complain(t, release, false, "%s lacks %s@%s (hidden: %v)", lib, s.name, s.version, s.hidden)
			} else if got != kind {
				t.Errorf("%s: %s@%s is %v, and %v in the installed one", lib, s.name, s.version, got, kind)
			}
		}
	}
}

// Binaries built with other releases find their symbols: testdata/symbols.txt lists them all. Some
// builds of rdma-core have the private version 50, with the functions of 34.
func TestSymbolsOfOtherReleases(t *testing.T) {
	gate.System(t)
	text, err := os.ReadFile("testdata/symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]map[symbol]elf.SymType{}
	for _, lib := range []string{"libibverbs.so.1", "librdmacm.so.1"} {
		ours[lib] = exports(t, filepath.Join(build(t), lib))
	}
	var lib, version string
	n := 0
	check := func(name, version string) {
		n++
		if !mapHas(ours[lib], symbol{name, version, false}) && !mapHas(ours[lib], symbol{name, version, true}) {
			t.Errorf("%s lacks %s@%s", lib, name, version)
		}
	}
	for line := range strings.Lines(string(text)) {
		switch name, of := strings.CutPrefix(line, "\t"); {
		case strings.HasPrefix(line, "#"):
		case !of:
			lib, version, _ = strings.Cut(strings.TrimSpace(line), " ")
		default:
			check(strings.TrimSpace(name), version)
			if version == "IBVERBS_PRIVATE_34" {
				check(strings.Replace(strings.TrimSpace(name), "_34", "_50", 1), "IBVERBS_PRIVATE_50")
			}
		}
	}
	if n < 700 {
		t.Errorf("only %d symbols are listed", n)
	}
}

func mapHas(m map[symbol]elf.SymType, s symbol) bool { _, ok := m[s]; return ok }

// The engine exports what it must, and its Go runtime's symbols do not collide with others.
func TestEngineExports(t *testing.T) {
	gate.System(t)
	f, err := elf.Open(filepath.Join(build(t), "libsoftrnic.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		found = found || s.Name == "softrnic_engine"
		if strings.HasPrefix(s.Name, "ibv_") || strings.HasPrefix(s.Name, "rdma_") {
			t.Errorf("the engine exports %s", s.Name)
		}
	}
	if !found {
		t.Error("the engine does not export softrnic_engine")
	}
}

// oldestGlibc is the release that softrnic run names when it refuses a program.
const oldestGlibc = "2.34"

// The libraries need no newer glibc than softrnic run says.
func TestOldestGlibc(t *testing.T) {
	gate.System(t)
	for _, lib := range []string{"libsoftrnic.so", "libibverbs.so.1", "librdmacm.so.1", "libsoftrnic-sysfs.so"} {
		f, err := elf.Open(filepath.Join(build(t), lib))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		symbols, err := f.ImportedSymbols()
		if err != nil {
			t.Fatal(err)
		}
		versions := 0
		for _, s := range symbols {
			if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok {
				versions++
				if version.Compare("go"+v, "go"+oldestGlibc) > 0 {
					t.Errorf("%s needs %s of glibc %s, later than %s", lib, s.Name, v, oldestGlibc)
				}
			}
		}
		if versions == 0 {
			t.Errorf("%s needs nothing of glibc", lib)
		}
	}
}

// The compiler reports it if the engine's description of a structure differs from the installed
// headers.
func TestLayoutIsChecked(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/gcc", "gcc")
	needs(t, "/usr/include/rdma/rdma_cma.h", "libibverbs-dev and librdmacm-dev")
	compile := func(change func(string) string) error {
		dir := t.TempDir()
		for _, file := range []string{
			"libibverbs/layout.c", "libibverbs/front.h", "libibverbs/life.h", "librdmacm/layout.c", "librdmacm/cm.h",
			"libsoftrnic/softrnic.h",
		} {
			text, err := os.ReadFile(filepath.Join("../../../cmd/dropin", file))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(file)), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, file), []byte(change(string(text))), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		return exec.Command("gcc", "-fsyntax-only", filepath.Join(dir, "libibverbs/layout.c"),
			filepath.Join(dir, "librdmacm/layout.c")).Run()
	}
	if err := compile(func(s string) string { return s }); err != nil {
		t.Fatalf("softrnic.h does not describe the structures of the installed headers: %v", err)
	}
	for _, change := range [][2]string{
		{"uint16_t pkey_index, slid;", "uint32_t pkey_index, slid;"},
		{"uint32_t opcode, send_flags, imm_data;", "uint32_t send_flags, opcode, imm_data;"},
		{"#define SR_AH_HANDLE 32", "#define SR_AH_HANDLE 36"},
		{"retry_count, rnr_retry_count, srq;\n\tuint32_t qp_num;", "retry_count, srq, rnr_retry_count;\n\tuint32_t qp_num;"},
		{"#define SR_CM_AFONLY 2", "#define SR_CM_AFONLY 4"},
		{"uint16_t pkey_tbl_len, lid, sm_lid;", "uint16_t lid, pkey_tbl_len, sm_lid;"},
	} {
		if compile(func(s string) string { return strings.Replace(s, change[0], change[1], 1) }) == nil {
			t.Errorf("the change of %q to %q is not detected", change[0], change[1])
		}
	}
}
