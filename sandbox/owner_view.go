package sandbox

import "time"

// ownerView is what the owner's templates are given.
type ownerView struct {
	Token string // of the session; "" if nobody is logged in
	Back  bool   // it is not the list, which is a step up

	Summary  string
	Grants   []grantView
	Grant    *grantView
	Receipts []receiptView
	First    int // number of the first receipt shown
	Notice   string

	Earlier, Later, Place string // links to the next pages, and where we are
}

// moment is a time as people and as machines read it; no machine reads a word.
type moment struct{ Text, Machine string }

func momentOf(t time.Time, never string) moment {
	if t.IsZero() {
		return moment{Text: never}
	}
	return moment{t.UTC().Format("2 Jan 2006, 15:04:05 MST"), t.UTC().Format(time.RFC3339)}
}

type grantView struct {
	brand              string
	ID, Href, Anchor   string
	Business, Initials string
	Hue                int
	Issuer, IssuerName string
	Subject, User      string
	Permissions        []Scope
	State, StateClass  string
	Active             bool
	EndWord            string
	Since, End         moment
	LastUsed           moment
}

type receiptView struct {
	At                   moment
	Tools                []string
	Used                 []Scope
	ContextID, MessageID string
	JWS                  string
}
