package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestFuzzC: clang's libFuzzer, with its address sanitizer, tests what C parses: names of sockets,
// and paths of devices.
func TestFuzzC(t *testing.T) {
	gate.Long(t) // it fuzzes for minutes
	for _, target := range []struct {
		harness   string
		sources   []string
		functions string
		seeds     []string
	}{
		{"fuzz_names.c", []string{"libsockets/preload.c", "libsockets/direct.c"}, "from_name to_name read_environment",
			[]string{"\x10\x01\x04\x00\x12\x34\x7f\x00\x00\x01" + strings.Repeat("\x00", 16), "\x1c\x00\x06" + strings.Repeat("\x01", 30),
				"softrnic-sockets:" + strings.Repeat("0f", 16)}},
		{"fuzz_paths.c", []string{"libsysfs/paths.c", "libsysfs/tree.c"}, "redirect redirect_at unredirect",
			[]string{"/sys/class/infiniband/mlx5_0/fw_ver", "sys/devices/pci0000:00/x", "/dev/infiniband/uverbs0", "/sys/bus/pci/drivers/d/bind"}},
	} {
		t.Run(target.harness, func(t *testing.T) {
			dir := t.TempDir()
			run := func(name string, args ...string) string {
				t.Helper()
				cmd := exec.Command(name, args...)
				cmd.Env = append(os.Environ(), "SOFTRNIC_SYSFS="+filepath.Join(dir, "tree"))
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %v\n%s", cmd, err, out)
				}
				return string(out)
			}
			for _, d := range []string{"tree/sys/class/infiniband/mlx5_0", "tree/sys/devices/pci0000:00", "tree/sys/bus/pci/drivers/d",
				"tree/dev/infiniband", "seeds"} {
				if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for i, seed := range target.seeds {
				if err := os.WriteFile(filepath.Join(dir, "seeds", string(rune('a'+i))), []byte(seed), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			program := filepath.Join(dir, "program")
			var objects []string
			for _, source := range target.sources {
				object := filepath.Join(dir, filepath.Base(source)+".o")
				objects = append(objects, object)
				run("clang", "-g", "-O0", "-fsanitize=fuzzer-no-link,address", "-c", "-o", object,
					filepath.Join("../../cmd/dropin", source))
			}
			// The functions of the C library that the sources replace are not for the fuzzer.
			// Optimized static functions have other parameters than those of their declarations.
			all := filepath.Join(dir, "all.o")
			run("ld", slices.Concat([]string{"-r", "-o", all}, objects)...)
			for _, flag := range []string{"--globalize-symbol=", "--keep-global-symbol="} {
				args := []string{all}
				for f := range strings.FieldsSeq(target.functions) {
					args = append(args, flag+f)
				}
				run("objcopy", args...)
			}
			run("clang", "-fsanitize=fuzzer,address", "-o", program, filepath.Join("testdata", target.harness), all, "-ldl", "-lpthread")
			out := run(program, "-max_total_time=120", "-max_len=5000", "-artifact_prefix="+dir+"/", filepath.Join(dir, "seeds"))
			t.Logf("result: %s: %s", target.harness, regexp.MustCompile(`Done .*`).FindString(out))
		})
	}
}
