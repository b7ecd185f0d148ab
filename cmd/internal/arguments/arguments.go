// Package arguments parses a command line, and runs the command. It is apart from package cli,
// because the drop-in libraries have no command line.
package arguments

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/link"
)

// nodeGroup is the group of --help with the flags of node.Flags.
var nodeGroup = kong.Group{Key: "node", Title: "The node:"}

// Run runs one command line and returns the exit code. grammar is a pointer to a struct of kong's
// whose fields are the commands. overview is the first text of --help.
func Run(ctx context.Context, args []string, e *cli.Env, grammar any, overview string) int {
	return e.Run(ctx, func() (func() error, error) {
		exited := false // kong has handled --help or --version
		parser := kong.Must(grammar,
			kong.Name("softrnic"),
			kong.Description(overview),
			kong.Vars{"version": cli.Version()},
			kong.Writers(e.Text(), e.Stderr),
			kong.Exit(func(int) { exited = true }),
			kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, NoAppDescFormat: true, WrapUpperBound: 120}),
			kong.ValueFormatter(withVariable),
			kong.ExplicitGroups([]kong.Group{nodeGroup}),
			mappers,
			kong.Bind(e),
			kong.BindTo(ctx, (*context.Context)(nil)),
		)
		if len(args) == 0 {
			args = []string{"--help"}
		}
		cmd, err := parser.Parse(args)
		switch {
		case exited:
			return nil, nil
		case err != nil:
			return nil, badUsage(err)
		}
		return func() error { return cmd.Run() }, nil
	})
}

// badUsage converts a parse error to a UsageError that names the command's --help. If a command is
// unknown, it lists the commands.
func badUsage(err error) error {
	failed := (*kong.ParseError)(nil)
	if !errors.As(err, &failed) {
		return cli.Usagef("%w", err)
	}
	node := failed.Context.Selected()
	if node == nil {
		node = failed.Context.Model.Node
	}
	var commands []string
	for _, child := range node.Children {
		commands = append(commands, child.Name)
	}
	if unknown := "unexpected argument"; strings.HasPrefix(err.Error(), unknown) && len(commands) > 0 {
		what, _, _ := strings.Cut(err.Error(), ", did you mean")
		err = fmt.Errorf("%s: the commands are %s", what, strings.Join(commands, ", "))
	}
	return cli.Usagef("%w (%s --help explains)", err, node.FullPath())
}

// withVariable returns the help of a flag with the environment variable of its tag var, as kong
// does for its own tag env. Kong would read that, also for the other commands.
func withVariable(v *kong.Value) string {
	help := kong.DefaultHelpValueFormatter(v)
	if name := v.Tag.Get("var"); name != "" {
		help = strings.TrimSuffix(help, ".") + " ($" + name + ")."
	}
	return help
}

// mappers parse flags of these types.
var mappers = kong.OptionFunc(func(k *kong.Kong) error {
	return errors.Join(
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)).Apply(k),
		kong.NamedMapper("port", between(1, 1<<16-1, "")).Apply(k),
		kong.NamedMapper("window", kong.MapperFunc(decodeWindow)).Apply(k),
		kong.NamedMapper("mtu",
			between(link.MinMTU, link.MaxSuperframe, " bytes: 1500 for a RoCE path MTU of 1024, 4200 for 4096")).Apply(k),
	)
})

// between parses a flag as an integer from least to most. The error for any other value ends with
// remark.
func between(least, most int64, remark string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		var s string
		if err := ctx.Scan.PopValueInto("number", &s); err != nil {
			return err
		}
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%s: must be %d to %d%s", s, least, most, remark)
		}
		target.Set(reflect.ValueOf(n).Convert(target.Type()))
		return nil
	}
}

// decodeWindow parses a RoCE window: a power of two.
func decodeWindow(ctx *kong.DecodeContext, target reflect.Value) error {
	err := between(128<<10, 16<<20, " bytes, a power of two")(ctx, target)
	if n := target.Int(); err == nil && n&(n-1) != 0 {
		err = fmt.Errorf("%d: must be a power of two, such as %d", n, 1<<bits.Len64(uint64(n)))
	}
	return err
}

// decodeDuration parses a duration in Go's syntax, or a number of seconds as in perftest's -D.
func decodeDuration(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("time", &s); err != nil {
		return err
	}
	d, err := time.ParseDuration(s)
	if seconds, plain := strconv.ParseFloat(s, 64); plain == nil {
		d, err = time.ParseDuration(strconv.FormatFloat(seconds, 'f', -1, 64) + "s")
	}
	if err != nil {
		return fmt.Errorf("%q is not a duration: must be like 500ms, 5s or 2m; a number without a unit is in seconds", s)
	}
	target.SetInt(int64(d))
	return nil
}
