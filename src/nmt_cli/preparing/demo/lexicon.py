"""The words of the demo corpus, written as a German dictionary prints them.

Nouns by sort: English, article, German, genitive, plural; a hyphen repeats the German word, mass nouns have no plural.
Verbs by valency: English, infinitive and, unless weak, third person, preterite and participle ("ist": the perfect takes
sein); a hyphen ends a separable prefix, an underscore precedes an English particle. A valency is `subject: frame; frame`:
commas separate complements, + precedes adjuncts, and `for=auf+acc vehicle` is an English "for" that is "auf" with the
accusative in German. English forms are regular unless written out with slashes.
"""

NOUNS = """
person | teacher der Lehrer -s -, doctor der Arzt -es Ärzte, student der Student -en -en, neighbour der Nachbar -n -n
person | farmer der Bauer -n -n, man/men der Mann -es Männer, policeman/policemen der Polizist -en -en
person | woman/women die Frau - -en, child/children das Kind -es -er, girl das Mädchen -s -, boy der Junge -n -n
person | mother die Mutter - Mütter, father der Vater -s Väter, daughter die Tochter - Töchter, son der Sohn -es Söhne
person | sister die Schwester - -n, brother der Bruder -s Brüder, friend der Freund -es -e, guest der Gast -es Gäste
person | engineer der Ingenieur -s -e, waitress die Kellnerin - -nen, actress die Schauspielerin - -nen
person | painter der Maler -s -, gardener der Gärtner -s -, singer der Sänger -s -, queen die Königin - -nen
animal | dog der Hund -es -e, cat die Katze - -n, horse das Pferd -es -e, cow die Kuh - Kühe, bear der Bär -en -en
animal | bird der Vogel -s Vögel, mouse/mice die Maus - Mäuse, goat die Ziege - -n, wolf/wolves der Wolf -es Wölfe
text | book das Buch -es Bücher, letter der Brief -es -e, newspaper die Zeitung - -en, poem das Gedicht -es -e
text | novel der Roman -s -e, story die Geschichte - -n, recipe das Rezept -es -e, song das Lied -es -er
thing | cup die Tasse - -n, bowl die Schale - -n, spoon der Löffel -s -, knife/knives das Messer -s -, bag die Tasche - -n
thing | key der Schlüssel -s -, box die Kiste - -n, ring der Ring -es -e, picture das Bild -es -er, pot die Kanne - -n
thing | gift das Geschenk -es -e, suitcase der Koffer -s -, bottle die Flasche - -n, ball der Ball -es Bälle
device | lamp die Lampe - -n, clock die Uhr - -en, radio/radios das Radio -s -s, computer der Computer -s -
clothing | coat der Mantel -s Mäntel, dress das Kleid -es -er, shoe der Schuh -es -e, hat der Hut -es Hüte
clothing | shirt das Hemd -es -en, jacket die Jacke - -n
furniture | table der Tisch -es -e, chair der Stuhl -es Stühle, bed das Bett -es -en, bench die Bank - Bänke
furniture | cupboard der Schrank -es Schränke, sofa das Sofa -s -s
opening | door die Tür - -en, window das Fenster -s -, gate das Tor -es -e
room | kitchen die Küche - -n, cellar der Keller -s -, office das Büro -s -s, room das Zimmer -s -
building | house das Haus -es Häuser, school die Schule - -n, hotel das Hotel -s -s, church die Kirche - -n
building | restaurant das Restaurant -s -s, museum das Museum -s Museen, shop der Laden -s Läden, theatre das Theater -s -
building | castle das Schloss -es Schlösser, library die Bibliothek - -en, station der Bahnhof -s Bahnhöfe
area | garden der Garten -s Gärten, city die Stadt - Städte, village das Dorf -es Dörfer, forest der Wald -es Wälder
ground | street die Straße - -n, bridge die Brücke - -n, field das Feld -es -er, square der Platz -es Plätze
ground | path der Weg -es -e, island die Insel - -n
vehicle | car das Auto -s -s, train der Zug -es Züge, bus der Bus -ses -se, ship das Schiff -es -e, boat das Boot -es -e
food | soup die Suppe - -n, salad der Salat -es -e, egg das Ei -s -er, sausage die Wurst - Würste, bread das Brot -es
food | cake der Kuchen -s -, apple der Apfel -s Äpfel, potato die Kartoffel - -n
drink | tea der Tee -s, coffee der Kaffee -s, milk die Milch -, juice der Saft -es, wine der Wein -es
plant | tree der Baum -es Bäume, flower die Blume - -n, rose die Rose - -n, bush der Busch -es Büsche
event | concert das Konzert -es -e, celebration die Feier - -n, wedding die Hochzeit - -en, exam die Prüfung - -en
event | lecture die Vorlesung - -en, game das Spiel -es -e, journey die Reise - -n, course der Kurs -es -e
weather | rain der Regen -s, snow der Schnee -s, storm der Sturm -es, noise der Lärm -s, heat die Hitze -
"""

# Modifiers in their linking form, and the heads that give the compound its gender and plural: Küchen + Stuhl, Küchenstühle.
COMPOUNDS = """
cake tree juice | apple Apfel, pear Birnen, cherry Kirsch, plum Pflaumen, orange Orangen, lemon Zitronen
soup salad | potato Kartoffel, tomato Tomaten, carrot Karotten, bean Bohnen, onion Zwiebel, chicken Hühner
table chair cupboard door window lamp clock | kitchen Küchen, garden Garten, office Büro, school Schul, hotel Hotel
door window key | cellar Keller, house Haus, church Kirchen, castle Schloss, shop Laden
bowl spoon box cup | wooden Holz, silver Silber, plastic Plastik
bridge gate bench table | wooden Holz, iron Eisen, stone Stein
coat dress shoe hat jacket | summer Sommer, winter Winter, leather Leder
cup pot | tea Tee, coffee Kaffee, milk Milch
bottle | wine Wein, beer Bier, juice Saft, milk Milch
teacher student course book | music Musik, art Kunst, language Sprach, history Geschichts, sports Sport
street school church library square museum restaurant | village Dorf, city Stadt
path hotel village restaurant church | forest Wald, mountain Berg, island Insel
gift cake celebration song guest | birthday Geburtstags, wedding Hochzeits, Christmas Weihnachts
house hotel picture celebration journey doctor | family Familien
dog car boat horse | police Polizei
bag | travel Reise, school Schul, sports Sport, leather Leder
story novel poem song | love Liebes, travel Reise, winter Winter
"""

ADJECTIVES = """
person | friendly freundlich, famous berühmt, rich reich, poor arm, clever klug, polite höflich, proud stolz
person animal | young jung, tired müde, strong stark, sick krank, hungry hungrig, curious neugierig, brave mutig
person animal text thing device clothing furniture room building area vehicle | old alt
animal thing device clothing furniture opening room building area ground vehicle plant | small klein, big groß
animal thing clothing furniture opening vehicle plant | beautiful schön, white weiß, red rot, yellow gelb
thing device clothing furniture vehicle | new neu, expensive teuer, cheap billig, heavy schwer
opening room building area ground | quiet ruhig, dark dunkel, modern modern
building plant | tall hoch
text event | long lang, short kurz, interesting interessant, boring langweilig, important wichtig
food drink | fresh frisch, cold kalt, delicious lecker, cheap billig
weather | terrible schrecklich, constant ständig, unexpected unerwartet
"""

VERBS = """
person: acc person +place | call an-rufen ruft rief gerufen, meet/met/met treffen trifft traf getroffen, greet begrüßen
person: acc person building | invite ein-laden lädt lud geladen, visit besuchen, admire bewundern
person animal: acc person animal vehicle +place | see/saw/seen sehen sieht sah gesehen, watch beobachten
person: acc animal plant building | draw/drew/drawn zeichnen, photograph fotografieren, love lieben
person: for=+acc thing text animal +place | search suchen
person: acc thing text clothing food +for +place | buy/bought/bought kaufen
person: acc thing text clothing | find/found/found finden findet fand gefunden, sell/sold/sold verkaufen
person: acc thing text clothing | lose/lost/lost verlieren verliert verlor verloren
person: acc thing text | throw_away/threw/thrown weg-werfen wirft warf geworfen
person: acc device vehicle +for +manner | repair reparieren
person: acc device | turn_on ein-schalten
person: acc opening +manner | open öffnen, close schließen schließt schloss geschlossen
person: acc room +manner | tidy_up auf-räumen, clean putzen
person: acc clothing | wash waschen wäscht wusch gewaschen, try_on an-probieren, hang_up/hung/hung auf-hängen
person: acc food +manner +place | eat/ate/eaten essen isst aß gegessen
person: acc drink +manner +place | drink/drank/drunk trinken trinkt trank getrunken
person: acc text +manner +place | write/wrote/written schreiben schreibt schrieb geschrieben, translate übersetzen
person: acc text +place | copy ab-schreiben schreibt schrieb geschrieben
person: acc building furniture +for | build/built/built bauen
person: acc event +manner | prepare vor-bereiten, cancel/cancelled/cancelled ab-sagen
person: dat person, acc thing text | give/gave/given geben gibt gab gegeben, send/sent/sent schicken, show zeigen
person: dat person, acc drink food | offer an-bieten bietet bot geboten
person: acc text event, to=+dat person | explain erklären, describe beschreiben beschreibt beschrieb beschrieben
person: acc person, to=+dat person | introduce vor-stellen
person: dat person +place | thank danken, answer antworten, help helfen hilft half geholfen
person animal: dat person animal | follow folgen ist
person: to=+dat person +place | listen zu-hören
person: for=auf+acc person vehicle +place | wait warten
person: about=über+acc person event text +with +place | talk sprechen spricht sprach gesprochen, laugh lachen
person: with=mit+dat animal +place | play spielen
person: in=an+dat event | take_part/took/taken teil-nehmen nimmt nahm genommen
person: into=in+acc room building area +with; to=zu+dat building | go/went/gone gehen geht ging ist gegangen
person: out_of=aus+dat room building; into=in+acc room | come/came/come kommen kommt kam ist gekommen
person: to=zu+dat building; through=durch+acc area | drive/drove/driven fahren fährt fuhr ist gefahren
person animal: onto=auf+acc furniture | jump springen springt sprang ist gesprungen
person: acc thing device, into=in+acc room building | carry tragen trägt trug getragen
person: acc text clothing, onto=auf+acc furniture | lay/laid/laid legen
person: +with +place | work arbeiten, dance tanzen, cry weinen
person animal: +spot +place | sleep/slept/slept schlafen schläft schlief geschlafen
person: +place | get_up/got/got auf-stehen steht stand ist gestanden, wake_up/woke/woken auf-wachen ist
person vehicle: in=in+dat area | arrive an-kommen kommt kam ist gekommen
vehicle: on=auf+dat ground; in_front_of=vor+dat building | stop/stopped/stopped halten hält hielt gehalten
person: in=in+dat building area | live wohnen, stay bleiben bleibt blieb ist geblieben
furniture device: in=in+dat room; next_to=neben+dat opening | stand/stood/stood stehen steht stand gestanden
thing device vehicle building: to=+dat person | belong gehören
plant: in=in+dat area; behind=hinter+dat building | grow/grew/grown wachsen wächst wuchs ist gewachsen, bloom blühen
person: that | believe glauben, know/knew/known wissen weiß wusste gewusst, say/said/said sagen, notice bemerken
person: whether; acc person, whether | ask fragen
person: to | try versuchen, begin/began/begun an-fangen fängt fing gefangen, plan/planned/planned planen
person: dat person, to | promise versprechen verspricht versprach versprochen, allow erlauben
"""

ADJUNCTS = """
place | in=in+dat room building area, on=auf+dat ground
spot | on=auf+dat furniture, under=unter+dat furniture plant, behind=hinter+dat opening building
for | for=für+acc person
with | with=mit+dat person animal, without=ohne+acc person
agent | by=von+dat person
time | after=nach+dat event, before=vor+dat event, during=während+gen event, because_of=wegen+gen weather
"""

WORDS = """
present | today=heute, now=jetzt, every day=jeden Tag, every morning=jeden Morgen, on Sunday=am Sonntag
past | yesterday=gestern, last week=letzte Woche, last year=letztes Jahr, two days ago=vor zwei Tagen
perfect | today=heute, this week=diese Woche, this morning=heute Morgen
future | tomorrow=morgen, next week=nächste Woche, soon=bald, in the evening=am Abend
manner | quickly=schnell, slowly=langsam, carefully=vorsichtig, secretly=heimlich, quietly=leise
frequency | often=oft, always=immer, sometimes=manchmal, never=nie, rarely=selten
question | why=warum, how often=wie oft
that | that=dass
whether | whether=ob
to | =
present link | because=weil, although=obwohl, when=wenn, if=falls, before=bevor, in order=um, but=aber
past link | because=weil, although=obwohl, when=als, while=während, before=bevor, in order=um, but=aber
"""

# English singular and plural, German, and a determiner with the same endings; a hyphen is no word.
DETERMINERS = """
definite | the the - der, the the - der, the the - der, the the - der, this these dies dieser, my my mein mein
definite | his his sein mein, her her ihr mein, our our unser mein, their their ihr mein
singular | a - ein ein, a - ein ein, a - ein ein, a - ein ein, every - jed dieser, no - kein ein
plural | - two zwei zwei, - three drei zwei, - many viel viele, - several mehrer viele, - - - zwei, - no kein ein
mass | - - - zwei, - - - zwei, no - kein ein
"""

PRONOUNS = "he him er ihn ihm, she her sie sie ihr, they them sie sie ihnen, we us wir uns uns"
NAMES = ["Anna", "Peter", "Maria", "Paul", "Lena", "Martin", "Julia", "Simon", "Clara", "David", "Laura", "Oliver"]
