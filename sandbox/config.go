package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/pactsigner/pactsigner/sandbox/person"
)

// maxConfigFile bounds a configuration file, in bytes.
const maxConfigFile = 1 << 20

// LoadConfig reads a configuration file: YAML, or JSON. docs/sandbox.md tells its
// keys. It is strict: an unknown key, a value of another type, an id that comes twice
// is an error, which names the line, the path, such as brands[0].scopes[1].id, and
// the fix. Relative paths in it start at its directory. log gets what commands that
// answer for brands say on stderr; nil: nothing does.
//
// In a Config from a file the login is the Provider's (OneOrigin), unless the file
// gives the brands their own origin.
//
// The file may name programs to run: one that everybody can write is refused. Of one
// that holds passwords and that others can read, the log says so.
//
// What is wrong in the file is a [*FileError].
func LoadConfig(file string, log *slog.Logger) (Config, error) {
	return loadConfig(file, log, false)
}

// CheckConfig is LoadConfig, and also looks whether State can be kept where the file
// says. It makes and changes nothing.
func CheckConfig(file string, log *slog.Logger) (Config, error) {
	return loadConfig(file, log, true)
}

func loadConfig(file string, log *slog.Logger, check bool) (Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return Config{}, fmt.Errorf("sandbox: configuration file: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return Config{}, fmt.Errorf("sandbox: configuration file: %w", err)
	}
	mode := info.Mode()
	if !mode.IsRegular() || runtime.GOOS == "windows" { // where its bits say nothing
		mode = 0
	}
	if mode&0o002 != 0 {
		return Config{}, fmt.Errorf("sandbox: configuration file %s: everybody can write it (mode %04o), and it says which programs run: chmod o-w it", file, mode.Perm())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxConfigFile+1))
	if err != nil {
		return Config{}, fmt.Errorf("sandbox: configuration file: %w", err)
	}
	if len(data) > maxConfigFile {
		return Config{}, fmt.Errorf("sandbox: configuration file %s is larger than %d bytes", file, maxConfigFile)
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return Config{}, fmt.Errorf("sandbox: configuration file: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	var content fileConfig
	c, err := content.parse(file, dir, data, log, check)
	if err == nil && mode&0o044 != 0 && content.holdsPasswords() {
		log.Warn("passwords are in the configuration file, and others can read it: chmod 600 it", "file", file)
	}
	return c, err
}

// fileConfig is a configuration file.
type fileConfig struct {
	At place

	PublicURL   string `yaml:"publicUrl"`
	Listen      string `yaml:"listen"`
	BrandURL    string `yaml:"brandUrl"`
	BrandListen string `yaml:"brandListen"`
	OwnerListen string `yaml:"ownerListen"`
	Audience    string `yaml:"audience"`
	State       string `yaml:"state"`

	Issuers    fileIssuers `yaml:"issuers"`
	AllowLocal bool        `yaml:"allowInsecureLocalIssuers"`

	Accounts []fileAccount `yaml:"accounts"`
	Owner    *filePassword `yaml:"owner"`

	Brands []fileBrand `yaml:"brands"`

	FaultHeader bool       `yaml:"faultHeader"`
	Faults      []string   `yaml:"faults"`
	Limits      fileLimits `yaml:"limits"`
	Times       fileTimes  `yaml:"times"`
}

type fileIssuers struct {
	At              place
	any, registered bool
	listed          []fileIssuer
}

type fileIssuer struct {
	At      place
	Issuer  string `yaml:"issuer"`
	JWKSURI string `yaml:"jwksUri"`
}

func (is *fileIssuers) readFrom(p place) {
	is.At = p
	switch {
	case p.node.Kind == yaml.ScalarNode && p.node.Value == "any":
		is.any = true
	case p.node.Kind == yaml.ScalarNode && p.node.Value == "registered":
		is.registered = true
	case p.node.Kind == yaml.SequenceNode && len(p.node.Content) == 0:
		p.fail("the list is empty: list an issuer, or write any or registered")
	case p.node.Kind == yaml.SequenceNode:
		for i := range p.node.Content {
			item := fileIssuer{At: p.item(i)}
			if item.At.node.Kind == yaml.ScalarNode {
				item.Issuer, _ = item.At.text()
			} else {
				readInto(item.At, &item)
			}
			is.listed = append(is.listed, item)
		}
	default:
		p.fail("write any, registered, or a list of issuers")
	}
}

type fileAccount struct {
	At           place
	ID           string `yaml:"id"`
	Name         string `yaml:"name"`
	Email        string `yaml:"email"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"passwordFile"`
}

type filePassword struct {
	At           place
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"passwordFile"`
}

type fileLimits struct {
	Issuer   fileLimit `yaml:"issuer"`
	User     fileLimit `yaml:"user"`
	Device   fileLimit `yaml:"device"`
	Login    fileLimit `yaml:"login"`
	Register fileLimit `yaml:"register"`
}

type fileLimit struct {
	At    place
	Every time.Duration `yaml:"every"`
	Burst int           `yaml:"burst"`
}

// over is the limit, with what the file leaves out as it was.
func (l fileLimit) over(was Limit) Limit {
	if l.At.doc == nil {
		return was
	}
	if at := l.At.key("burst"); at.node != l.At.node && l.Burst < 1 {
		at.fail("must be at least 1")
	}
	return Limit{cmp.Or(l.Every, was.Every), cmp.Or(l.Burst, was.Burst)}
}

// fileTimes are Params' durations, but for those of limits.
type fileTimes struct {
	At             place
	KeySetTTL      time.Duration `yaml:"keySetTTL"`
	KeySetRefetch  time.Duration `yaml:"keySetRefetch"`
	KeySetRetry    time.Duration `yaml:"keySetRetry"`
	Leeway         time.Duration `yaml:"leeway"`
	MaxAge         time.Duration `yaml:"maxAge"`
	ContextIdle    time.Duration `yaml:"contextIdle"`
	DeviceInterval time.Duration `yaml:"deviceInterval"`
	SlowDown       time.Duration `yaml:"slowDown"`
	DeviceCodeTTL  time.Duration `yaml:"deviceCodeTTL"`
	AssertionTTL   time.Duration `yaml:"assertionTTL"`
	SessionTTL     time.Duration `yaml:"sessionTTL"`
	TokenTTL       time.Duration `yaml:"tokenTTL"`
	GrantTTL       time.Duration `yaml:"grantTTL"`
}

// parse is loadConfig for a file's content.
func (f *fileConfig) parse(file, dir string, data []byte, log *slog.Logger, check bool) (Config, error) {
	if err := readYAML(file, data, f); err != nil {
		return Config{}, err
	}
	f.notEmpty("brands", f.Brands != nil && len(f.Brands) == 0, "Larkline Air and Marrow Books")
	f.notEmpty("accounts", f.Accounts != nil && len(f.Accounts) == 0, "Robin and Sam")
	c := Config{
		PublicURL: f.PublicURL, Listen: f.Listen, BrandURL: f.BrandURL, BrandListen: f.BrandListen,
		OwnerListen: f.OwnerListen, Audience: f.Audience,
		FaultHeader: f.FaultHeader, Faults: f.Faults,
		Log: log,
	}
	c.OneOrigin = f.BrandListen == "" && (f.BrandURL == "" || f.BrandURL == f.PublicURL)
	if c.OneOrigin {
		c.BrandURL = ""
	}
	if c.State = f.State; c.State != "" && !filepath.IsAbs(c.State) {
		c.State = filepath.Join(dir, c.State)
	}
	if check && c.State != "" {
		if err := CheckState(c.State); err != nil {
			f.At.key("state").fail("%v", err)
		}
	}
	f.checkOrigins()
	c.Issuers = f.issuers()
	c.Accounts = f.accounts(dir)
	if o := f.Owner; o != nil {
		c.OwnerPassword = o.At.password(o.Password, o.PasswordFile, dir)
	}
	c.Brands = f.brands(dir, log)
	f.checkAudience(c.Brands)
	for i, spec := range f.Faults {
		if _, err := parseFault(spec); err != nil {
			f.At.key("faults").item(i).fail("%q: %v", spec, err)
		}
	}
	c.Params = f.params()
	if err := f.At.doc.err(); err != nil {
		return Config{}, err
	}
	return c, nil
}

func (f *fileConfig) notEmpty(key string, empty bool, otherwise string) {
	if empty {
		f.At.key(key).fail("the list is empty: list one, or leave the key out, which means %s", otherwise)
	}
}

func (f *fileConfig) holdsPasswords() bool {
	return f.Owner != nil && f.Owner.Password != "" ||
		slices.ContainsFunc(f.Accounts, func(a fileAccount) bool { return a.Password != "" })
}

// DefaultListen is where pactctl sandbox has the Provider listen if nobody says.
const DefaultListen = "127.0.0.1:8791"

// checkAudience: what PA-JWTs are for is no interface URL, also where publicUrl is left
// out.
func (f *fileConfig) checkAudience(brands []Brand) {
	origin := cmp.Or(f.PublicURL, "http://"+cmp.Or(f.Listen, DefaultListen))
	ids := []string{LarklineID, MarrowID}
	if len(brands) > 0 {
		ids = nil
	}
	for _, b := range brands {
		ids = append(ids, b.ID)
	}
	for _, id := range ids {
		if id != "" && f.Audience == origin+"/a2a/"+id {
			f.At.key("audience").fail("it is the interface URL of the brand %q: choose another, such as %s/a2a", id, origin)
		}
	}
}

// checkOrigins looks at what is said of addresses.
func (f *fileConfig) checkOrigins() {
	origins := map[string]string{"publicUrl": f.PublicURL, "brandUrl": f.BrandURL}
	for key, origin := range origins {
		if origin != "" {
			if err := checkOrigin(origin); err != nil {
				f.At.key(key).fail("%v", err)
			}
		}
	}
	for key, address := range map[string]string{"listen": f.Listen, "brandListen": f.BrandListen} {
		if address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			f.At.key(key).fail("%q: write HOST:PORT, such as 127.0.0.1:8791", address)
		}
	}
	if f.OwnerListen != "" {
		if err := checkOwnerListen(f.OwnerListen); err != nil {
			f.At.key("ownerListen").fail("%v", err)
		}
	}
}

// checkOrigin tells whether agents are willing to use an origin.
func checkOrigin(origin string) error {
	u, err := url.Parse(origin)
	if err != nil || originOf(origin) != origin || u.Host == "" || u.Port() == "0" {
		return fmt.Errorf("%q: use an origin such as https://provider.example, without a path or trailing slash", origin)
	}
	if reason := agentsRefuse(u); reason != "" {
		return fmt.Errorf("%q: agents refuse it, since %s: use https and a public host name, or a loopback address", origin, reason)
	}
	return nil
}

func (f *fileConfig) issuers() *Issuers {
	is := &Issuers{Any: f.Issuers.any, Registered: f.Issuers.registered, Local: f.AllowLocal}
	seen := map[string]bool{}
	for _, i := range f.Issuers.listed {
		listed := Issuer{i.Issuer, i.JWKSURI}
		err := listed.validate(f.AllowLocal)
		switch {
		case err == nil:
		case errors.Is(err, errLocalHTTP):
			i.At.fail("%v: set allowInsecureLocalIssuers: true", err)
		default:
			i.At.fail("%v", err)
		}
		if seen[i.Issuer] {
			i.At.fail("%q is listed before: keep one", i.Issuer)
		}
		seen[i.Issuer] = true
		is.Listed = append(is.Listed, listed)
	}
	return is
}

func (f *fileConfig) accounts(dir string) []Account {
	var accounts []Account
	ids, emails := map[string]bool{}, map[string]bool{}
	for _, a := range f.Accounts {
		a.At.unique("id", a.ID, ids)
		a.At.unique("email", strings.ToLower(strings.TrimSpace(a.Email)), emails)
		if a.Email != "" && !strings.Contains(a.Email, "@") {
			a.At.key("email").fail("%q: write an address, such as robin@example.com", a.Email)
		}
		password := a.At.password(a.Password, a.PasswordFile, dir)
		accounts = append(accounts, Account{ID: a.ID, Name: cmp.Or(a.Name, a.Email), Login: person.Login{Email: a.Email, Password: password}})
	}
	return accounts
}

// required fails if a text is missing or blank.
func (p place) required(key, value string) bool {
	if strings.TrimSpace(value) == "" {
		p.key(key).fail("it is missing: give it a text")
		return false
	}
	return true
}

// unique fails if a text is missing, blank, or among those seen.
func (p place) unique(key, value string, seen map[string]bool) {
	if p.required(key, value) && seen[value] {
		p.key(key).fail("%q is taken by one before: each needs its own", value)
	}
	seen[value] = true
}

// password is what a mapping says by password or passwordFile. Problems do not quote
// it.
func (p place) password(password, file, dir string) string {
	switch {
	case password != "" && file != "":
		p.key("passwordFile").fail("password says it too: keep one of the two")
		return ""
	case file != "":
		var err error
		if password, err = ReadPassword(inDir(dir, file)); err != nil {
			p.key("passwordFile").fail("%v", err)
			return ""
		}
	}
	if len(password) < minPassword || len(password) > maxPassword {
		p.fail("give a password, or a passwordFile, of %d to %d bytes", minPassword, maxPassword)
	}
	return password
}

// ReadPassword reads a file that holds a password of 8 to 256 bytes, with or without
// a line end. Errors do not quote it.
func ReadPassword(file string) (string, error) {
	unread := func(err error) error {
		return fmt.Errorf("sandbox: password file: %w: name a file that holds a password of %d to %d bytes, and that you may read", err, minPassword, maxPassword)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", unread(err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxPassword+3))
	if err != nil {
		return "", unread(err)
	}
	password := strings.TrimRight(string(data), "\r\n")
	if len(password) < minPassword || len(password) > maxPassword {
		return "", fmt.Errorf("sandbox: password file %s does not hold a password of %d to %d bytes", file, minPassword, maxPassword)
	}
	return password, nil
}

func inDir(dir, file string) string {
	if filepath.IsAbs(file) {
		return file
	}
	return filepath.Join(dir, file)
}

func (f *fileConfig) params() Params {
	p := Defaults()
	l := f.Limits
	p.IssuerLimit, p.UserLimit = l.Issuer.over(p.IssuerLimit), l.User.over(p.UserLimit)
	p.DeviceLimit, p.LoginLimit = l.Device.over(p.DeviceLimit), l.Login.over(p.LoginLimit)
	p.RegisterLimit = l.Register.over(p.RegisterLimit)
	t := f.Times
	for _, d := range []struct {
		into *time.Duration
		said time.Duration
	}{
		{&p.KeySetTTL, t.KeySetTTL}, {&p.KeySetRefetch, t.KeySetRefetch}, {&p.KeySetRetry, t.KeySetRetry},
		{&p.Leeway, t.Leeway}, {&p.MaxAge, t.MaxAge}, {&p.ContextIdle, t.ContextIdle},
		{&p.DeviceInterval, t.DeviceInterval}, {&p.SlowDown, t.SlowDown}, {&p.DeviceCodeTTL, t.DeviceCodeTTL},
		{&p.AssertionTTL, t.AssertionTTL}, {&p.SessionTTL, t.SessionTTL}, {&p.TokenTTL, t.TokenTTL}, {&p.GrantTTL, t.GrantTTL},
	} {
		*d.into = cmp.Or(d.said, *d.into)
	}
	if t.At.doc != nil {
		if p.Leeway > Defaults().Leeway {
			t.At.key("leeway").fail("the protocol allows at most %v", Defaults().Leeway)
		}
		if p.TokenTTL < time.Second || p.TokenTTL > Defaults().TokenTTL {
			t.At.key("tokenTTL").fail("a delegation token may live for 1s to %v", Defaults().TokenTTL)
		}
	}
	return p
}

// fileBrand is a brand of a configuration file.
type fileBrand struct {
	At          place
	Builtin     string         `yaml:"builtin"`
	ID          string         `yaml:"id"`
	Name        string         `yaml:"name"`
	Description string         `yaml:"description"`
	Capability  fileCapability `yaml:"capability"`
	Scopes      fileScopes     `yaml:"scopes"`
	NotShared   []string       `yaml:"notShared"`
	StepUpFirst fileStepUp     `yaml:"stepUpFirst"`
	Asks        []fileAsk      `yaml:"asks"`
	Closes      string         `yaml:"closes"`
	Replies     []fileReply    `yaml:"replies"`
	Command     *fileCommand   `yaml:"command"`
}

// fileCapability is what the brand's agent can do: a skill, or only its id.
type fileCapability struct {
	At          place
	ID          string   `yaml:"id"`
	Name        string   `yaml:"name"`
	Description string   `yaml:"description"`
	Tags        []string `yaml:"tags"`
	Examples    []string `yaml:"examples"`
}

func (c *fileCapability) readFrom(p place) {
	c.At = p
	if p.node.Kind == yaml.MappingNode {
		readInto(p, c)
	} else if p.node.Kind == yaml.ScalarNode {
		c.ID, _ = p.text()
	} else {
		p.fail("write the id of a skill, or a mapping of id, name, description, tags and examples")
	}
}

// fileScopes are scopes in their order: a list of {id, description}, or a mapping of
// ids to descriptions.
type fileScopes struct {
	At   place
	list []fileScope
}

type fileScope struct {
	At          place
	ID          string `yaml:"id"`
	Description string `yaml:"description"`
}

func (s *fileScopes) readFrom(p place) {
	s.At = p
	switch p.node.Kind {
	case yaml.SequenceNode:
		for i := range p.node.Content {
			item := fileScope{At: p.item(i)}
			readInto(item.At, &item)
			s.list = append(s.list, item)
		}
	case yaml.MappingNode:
		p.eachKey(func(key, value place) {
			if description, ok := value.text(); ok {
				s.list = append(s.list, fileScope{value, key.node.Value, description})
			}
		})
	default:
		p.fail("write a list of {id, description}")
	}
}

// fileStepUp are the scopes to ask for first: true is all.
type fileStepUp struct {
	At     place
	all    bool
	scopes []string
}

func (f *fileStepUp) readFrom(p place) {
	f.At = p
	switch {
	case p.node.ShortTag() == "!!bool" && p.node.Decode(&f.all) == nil:
	case p.node.ShortTag() == "!!str":
		f.scopes = []string{p.node.Value}
	default:
		p.fail("write true, false, or the id of a scope")
	}
}

type fileAsk struct {
	At    place
	Scope string `yaml:"scope"`
	Text  string `yaml:"text"`
}

// brands are the file's brands; nil if it has none, which are the two built in.
func (f *fileConfig) brands(dir string, log *slog.Logger) []Brand {
	var brands []Brand
	ids := map[string]bool{}
	for _, fb := range f.Brands {
		b := fb.brand(dir, log)
		if b.ID != "" && ids[b.ID] {
			fb.At.key("id").fail("%q is taken by a brand before: each needs its own", b.ID)
		}
		ids[b.ID] = true
		if before := len(f.At.doc.problems); before == 0 {
			if err := b.validate(); err != nil { // what the file has no own check for
				fb.At.fail("%v", err)
			}
		}
		brands = append(brands, b)
	}
	return brands
}

// brand makes the brand.
func (f *fileBrand) brand(dir string, log *slog.Logger) Brand {
	if f.Builtin != "" || f.At.key("builtin").node != f.At.node {
		return f.builtin()
	}
	b := Brand{
		ID: f.ID, Name: f.Name, Description: f.Description,
		NotShared: f.NotShared, Closes: f.Closes,
	}
	if f.At.required("id", f.ID) && !brandID.MatchString(f.ID) {
		f.At.key("id").fail("%q: use 1-64 letters, digits, '-' and '_'", f.ID)
	}
	f.At.required("name", f.Name)
	f.At.required("description", f.Description)
	seen := map[string]bool{}
	for _, s := range f.Scopes.list {
		if s.At.required("id", s.ID) && !scopeID.MatchString(s.ID) {
			s.At.key("id").fail("%q: a scope is printable ASCII without spaces, quotes and backslashes", s.ID)
		}
		if seen[s.ID] && s.ID != "" {
			s.At.key("id").fail("%q is taken by a scope before: each needs its own", s.ID)
		}
		s.At.required("description", s.Description)
		seen[s.ID] = true
		b.Scopes = append(b.Scopes, Scope{s.ID, s.Description})
	}
	if len(b.Scopes) == 0 && len(f.NotShared) > 0 {
		f.At.key("notShared").fail("the brand has no scopes, and so no consent page that says it: give it scopes, or leave this out")
	}
	b.Skills = []Skill{f.skill()}
	for _, a := range f.Asks {
		a.At.required("text", a.Text)
		f.scope(a.At.key("scope"), a.Scope)
		b.Asks = append(b.Asks, Ask{a.Scope, a.Text})
	}
	b.StepUpFirst = f.stepUpFirst(&b)
	switch {
	case f.Command != nil && f.Replies != nil:
		f.At.key("command").fail("replies answers too: keep one of the two")
	case f.Command != nil:
		c := f.Command.command(f.ID, dir, log)
		b.Respond, b.close = c.respond, c.close
	default:
		b.Respond = f.script().respond
	}
	return b
}

func (f *fileBrand) builtin() Brand {
	var b Brand
	switch f.Builtin {
	case "larkline":
		b = Larkline(time.Now())
	case "marrow":
		b = Marrow()
	default:
		f.At.key("builtin").fail("%q: larkline and marrow are built in", f.Builtin)
		return b
	}
	f.At.eachKey(func(key, _ place) {
		if name := key.node.Value; name != "builtin" && name != "stepUpFirst" {
			key.fail("a built-in brand brings its own: leave it out")
		}
	})
	f.Scopes.list = nil
	for _, s := range b.Scopes {
		f.Scopes.list = append(f.Scopes.list, fileScope{ID: s.ID})
	}
	b.StepUpFirst = f.stepUpFirst(&b)
	return b
}

func (f *fileBrand) stepUpFirst(b *Brand) []string {
	if !f.StepUpFirst.all && f.StepUpFirst.scopes == nil {
		return nil
	}
	if len(b.Scopes) == 0 {
		f.StepUpFirst.At.fail("the brand has no scopes to ask for: give it scopes, or leave this out")
		return nil
	}
	if f.StepUpFirst.all {
		return b.scopeIDs()
	}
	f.scope(f.StepUpFirst.At, f.StepUpFirst.scopes[0])
	return f.StepUpFirst.scopes
}

// scope fails if an id is none of the brand's scopes.
func (f *fileBrand) scope(at place, id string) {
	var ids []string
	for _, s := range f.Scopes.list {
		ids = append(ids, s.ID)
	}
	switch {
	case len(ids) == 0:
		at.fail("the brand has no scopes: give it scopes, or leave this out")
	case !slices.Contains(ids, id):
		at.fail("%q is not a scope of the brand%s", id, instead(id, ids))
	}
}

// skill is the capability, with what the file leaves out made of the rest.
func (f *fileBrand) skill() Skill {
	c := f.Capability
	if c.At.doc != nil {
		c.At.required("id", c.ID)
	}
	id := cmp.Or(c.ID, "ask")
	tags := c.Tags
	if len(tags) == 0 {
		tags = strings.FieldsFunc(id, func(r rune) bool { return strings.ContainsRune("-_.: ", r) })
	}
	return Skill{
		ID: id, Name: cmp.Or(c.Name, f.Name), Description: cmp.Or(c.Description, f.Description),
		Tags: tags, Examples: c.Examples,
	}
}
