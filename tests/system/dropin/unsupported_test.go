//go:build linux && amd64

package dropin

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestUnsupported runs testdata/unsupported.c, which describes its checks, for all functions that
// are declared to fail in cmd.
func TestUnsupported(t *testing.T) {
	gate.System(t)
	program := compile(t, "unsupported")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, _ := pair(t, 0)
	n.env = append(n.env, "SOFTRNIC_LINK=pipe")
	names := unsupported(t)
	if len(names) < 500 {
		t.Errorf("there are only %d functions that fail", len(names))
	}
	if out, err := n.program(ctx, t, program, names...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// unsupported returns the functions of the libraries that always fail, in the format of
// testdata/unsupported.c.
func unsupported(t *testing.T) (names []string) {
	t.Helper()
	source := func(file string) string {
		text, err := os.ReadFile(filepath.Join("../../../cmd/dropin", file))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	private := source("libibverbs/private.c")
	list := func(begin, end string) (names []string) {
		_, text, found := strings.Cut(private, begin)
		text, _, ends := strings.Cut(text, end)
		if !found || !ends {
			t.Fatalf("private.c has no %q", begin)
		}
		for _, m := range regexp.MustCompile(`F\((\w+)\)`).FindAllStringSubmatch(text, -1) {
			names = append(names, m[1])
		}
		return names
	}
	for _, version := range []string{"33", "34", "50", "57", "59", "64", "65"} {
		for _, name := range list("#define FAILING", "#define F(") {
			names = append(names, "errno:"+name+"@IBVERBS_PRIVATE_"+version)
		}
		for _, name := range []string{"verbs_open_device", "_verbs_init_and_alloc_context"} {
			names = append(names, "null:"+name+"@IBVERBS_PRIVATE_"+version)
		}
	}
	nosys := ":" + strconv.Itoa(int(syscall.ENOSYS))
	for _, name := range list("#define OLD", "#define F(") {
		names = append(names, "null:"+name+"@IBVERBS_1.0"+nosys)
	}
	names = append(names, "null:ibv_register_driver@IBVERBS_1.1"+nosys)
	call := regexp.MustCompile(`\nF\((\w+)\)`)
	group := regexp.MustCompile(`(?s)PUBLIC \S+ \*?(null|errno|minus)_##name.*?#undef F`)
	for _, m := range group.FindAllStringSubmatch(source("libibverbs/unsupported.c"), -1) {
		for _, f := range call.FindAllStringSubmatch(m[0], -1) {
			names = append(names, m[1]+":"+f[1])
		}
	}
	for _, m := range regexp.MustCompile(`(?m)^UNSUPPORTED\(int, (\w+)`).FindAllStringSubmatch(source("librdmacm/unsupported.c"), -1) {
		name := "minus:" + m[1]
		if strings.HasPrefix(m[1], "repoll_") {
			name += nosys
		}
		names = append(names, name)
	}
	return names
}
